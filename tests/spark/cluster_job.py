"""The program that the cluster test submits: counts a stream by key, and says where its tasks ran."""

import json
import sys

from pyspark.sql import functions as F

from weft.spark import session

folder, url = sys.argv[1:]
spark = session("cluster job")
rows = spark.read.format("weft").options(path=folder, stream="orders", minPartitions=4, maxRowsPerPartition=1000).load()
counts = {row["routing_key"]: row["count"] for row in rows.groupBy("routing_key").count().collect()}
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
rows.select(F.col("body")).write.format("weft").options(url=url, address="copies").mode("append").save()
print(json.dumps({"counts": counts, "master": spark.sparkContext.master, "executors": executors}))
spark.stop()
