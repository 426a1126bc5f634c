"""Owns the demo's Spark: a local session that writes only into the demo's directory and is quiet."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from pywan.errors import ConfigurationError
from pywan.java import ensure_java

CORES = 2
_LOGGING = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


def check() -> None:
    """ConfigurationError says what to install if Spark or Java is missing. Makes no file of the demo's."""
    try:
        import pyspark.java_gateway
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"the demo feeds through Spark, which is not installed ({error}): pip install 'pywan[spark]'"
        ) from None
    ensure_java()


def start(directory: Path) -> Any:
    """A SparkSession on this machine's cores, after `check`."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    directory.mkdir(parents=True, exist_ok=True)
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(_LOGGING.format(file=directory / "spark.log"), encoding="utf-8")
    settings = {
        "spark.master": f"local[{CORES}]",
        "spark.app.name": "pywan demo",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    }
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # The Java process and the workers of the executors print into a file. The Java process has a session of its own, so
    # Ctrl-C does not reach it: the demo ends it in order, or it ends by itself when this process is gone.
    with open(directory / "java.log", "wb") as output:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf, popen_kwargs={"stdout": output, "stderr": output, "start_new_session": True}
        )
    SparkContext._ensure_initialized(gateway=gateway)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def activity(session: Any) -> str:
    """How far Spark is with what it does now: `7 of 16 tasks`; nothing if it does nothing."""
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    tasks = sum(stage.numTasks for stage in stages if stage is not None)
    return f"{done} of {tasks} tasks" if tasks else ""


def stop(session: Any) -> None:
    """Ends the session and the Java process behind it, and waits until that is gone."""
    from pyspark import SparkContext

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # It would complain about a call that was interrupted.
    gateway = SparkContext._gateway
    session.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()  # Spark's Java process ends with its standard input.
    try:
        process.wait(20)
    except Exception:
        process.kill()
        process.wait(5)
    SparkContext._gateway = SparkContext._jvm = None
