"""What Spark imports by itself: the process in which it looks for data sources takes every package `pyspark_…` along.

Owns one line: that process, too, says nothing when its JVM hangs up, which it does a minute after every start.
It must never import `weft.spark`, which takes longer than the search; the source itself is registered by `weft.spark`.
Rule: pyspark.sql.worker.lookup_data_sources, and `weft._spark_daemon`.
"""

from weft._spark_daemon import hush

hush()
