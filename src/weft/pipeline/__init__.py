"""The data pipeline: jobs over streams in Spark, and their answers back in the fabric.

Owns the jobs, each a set of pure functions from DataFrame to DataFrame, and the run that feeds them.
It must never know how a row comes from a node: that is `weft.spark`.
What each job computes is told in docs/guides/pipeline.md.
"""
