"""Real Spark on one shared local session: the data source, the jobs, and the pipeline end to end."""
