"""The extension that logs a run to MLflow."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsinga.base.durable_files import replace_file
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.registry import register
from dsinga.base.regular_files import read_regular_text
from dsinga.checkpoint import latest
from dsinga.extensions.extension import Extension, LoopView
from dsinga.extensions.triggers import AtEnd
from dsinga.job import Job, LayerConf, Message, redact_job, to_text
from dsinga.job.component import Settings, setting
from dsinga.job.message import readable, set_fields
from dsinga.monitor import NOT_METRICS

RUN_FILE = "mlflow_run"  # in the workspace: the id of the run that a resumed run continues
PARAMS_AT_ONCE, PARAM_LENGTH = 100, 6000  # limits of MLflow


@register("extension", kMLflow=7)
class MLflow(Extension):
    """Logs a run to MLflow: the fields of the job as params, the history as metrics, and files as artifacts.

    Metrics are named by phase and name, as in "val/loss". The artifacts are the job as text, ``job.conf``, and, if the
    run has a workspace, its last checkpoint. A resumed run continues the run of MLflow with the id in the file
    ``mlflow_run`` of the workspace; it logs no metric twice.

    Raises UserError if MLflow is not installed.
    """

    class Conf(Settings):
        """Settings of kMLflow."""

        uri: str | None = setting(
            None,
            "the address of MLflow's server, or a local folder; by default that in the environment variable "
            "MLFLOW_TRACKING_URI, else the folder mlruns",
        )
        experiment: str = setting("Default", "the name of MLflow's experiment, which is made if there is none")
        run_name: str | None = setting(None, "the name of MLflow's run; by default the job's")

    settings: Conf
    pauses = False

    def set_up(self) -> None:
        """Check that MLflow is installed."""
        if importlib.util.find_spec("mlflow") is None:
            raise UserError("MLflow needs mlflow-skinny: pip install 'dsinga[mlflow]'")
        self.trigger = AtEnd()
        self._uri = self.settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or "mlruns"
        self._client: Any = None
        self._run_id = ""
        self._logged: dict[str, int] = {}  # the last step of each metric, in a resumed run

    def check(self, workspace: Path | None) -> None:
        """Check that MLflow answers, by asking for the experiment."""
        with self._naming_the_server():
            self._client = _connect(self._uri)
            self._client.get_experiment_by_name(self.settings.experiment)

    def start(self, loop: LoopView) -> None:
        """Create an MLflow run, or continue the resumed run's."""
        self._logged = {}
        self.check(loop.workspace)
        with self._naming_the_server():
            self._run_id = (self._earlier_run(loop) if loop.step else "") or self._create_run(loop)
        if loop.workspace is not None:
            replace_file(loop.workspace / RUN_FILE, self._run_id)

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Log the metrics of a row."""
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), row["step"]
        values = {f"{row['phase']}/{name}": value for name, value in row.items() if name not in NOT_METRICS}
        metrics = [
            Metric(name, value, now, step) for name, value in values.items() if step > self._logged.get(name, -1)
        ]
        with self._naming_the_server():
            self._client.log_batch(self._run_id, metrics=metrics)

    def run(self, loop: LoopView) -> None:
        """Do nothing: rows are logged already."""

    def finish(self, loop: LoopView) -> None:
        """Log the last checkpoint as an artifact of the MLflow run."""
        path = latest(loop.workspace / "checkpoint") if loop.workspace is not None else None
        if path is not None:
            with self._naming_the_server():
                self._client.log_artifacts(self._run_id, str(path), f"checkpoint/{path.name}")

    def close(self, error: BaseException | None) -> None:
        """Set the status of MLflow's run: finished, failed or killed."""
        run_id, self._run_id = self._run_id, ""
        if run_id:
            status = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
            self._client.set_terminated(run_id, status)

    def _create_run(self, loop: LoopView) -> str:
        from mlflow.entities import Param

        experiment = self._client.get_experiment_by_name(self.settings.experiment)
        id = experiment.experiment_id if experiment else self._client.create_experiment(self.settings.experiment)
        run_id = self._client.create_run(id, run_name=self.settings.run_name or loop.job.name).info.run_id
        params = [Param(name, value) for name, value in job_params(redact_job(loop.job)).items()]
        for first in range(0, len(params), PARAMS_AT_ONCE):
            self._client.log_batch(run_id, params=params[first : first + PARAMS_AT_ONCE])
        self._client.log_text(run_id, to_text(redact_job(loop.job)), "job.conf")
        return str(run_id)

    def _earlier_run(self, loop: LoopView) -> str:
        file = loop.workspace / RUN_FILE if loop.workspace is not None else Path()
        if not file.is_file():
            return ""
        run_id = read_regular_text(file).strip()
        for name in self._client.get_run(run_id).data.metrics:
            self._logged[name] = max(metric.step for metric in self._client.get_metric_history(run_id, name))
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    @contextlib.contextmanager
    def _naming_the_server(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            fault = redact(f"MLflow at {self._uri} failed: {error}", self._uri)
            raise self.error(fault) from redacted_cause(error, self._uri)


def job_params(job: Job) -> dict[str, str]:
    """Return the fields of a job that differ from their defaults, by path: {"updater.learning_rate.base_lr": "0.1"}.

    Layers have their names in paths, such as "layer.conv1.convolution_conf.kernel", other repeated messages their
    number. Characters that MLflow forbids become underscores.
    """
    found: dict[str, str] = {}
    _add_params(job, "", found)
    return {re.sub(r"[^\w.\- :/]", "_", name): value[:PARAM_LENGTH] for name, value in found.items()}


def _add_params(message: Message, prefix: str, found: dict[str, str]) -> None:
    for name, value in set_fields(message).items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(item, Message) for item in values):
            found[prefix + name] = ", ".join(str(readable(item)) for item in values)
            continue
        for number, item in enumerate(values):
            place = "" if name == "neuralnet" else f"{prefix}{name}."
            if isinstance(item, LayerConf):
                place += f"{_layer_name(item, values)}."
            elif isinstance(value, list):
                place += f"{number}."
            _add_params(item, place, found)


def _layer_name(layer: LayerConf, layers: list[LayerConf]) -> str:
    shares_name = sum(other.name == layer.name for other in layers) > 1
    return ".".join([layer.name or layer.type_name, *(str(readable(phase)) for phase in layer.include if shares_name)])


def _connect(uri: str) -> Any:
    import mlflow

    if "://" not in uri or uri.startswith("file:"):
        # MLflow discourages local folders in favour of SQLite, which needs packages that mlflow-skinny does without.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient(tracking_uri=uri)
