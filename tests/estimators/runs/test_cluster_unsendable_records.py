"""Estimators refuse records that cannot be sent to processes in one sentence that names them."""

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from dsinga.estimators import Classifier
from tests.cluster.runs.test_cluster_unsendable import LOCK, X, Y, check_refusal, locked

lazy_x, lazy_y = da.from_array(X, chunks=(100, -1)), da.from_array(Y, chunks=100)

# What is called with a client, and the beginning of the message.
CALLS: dict[str, tuple[Callable[[Client], Any], str]] = {
    "records": (
        lambda client: Classifier().fit(locked(X), lazy_y, client=client),
        f"dask array: 'X' cannot be sent to Dask workers (its task 'add': {LOCK})",
    ),
    "predict": (
        lambda client: Classifier(epochs=1).fit(X, Y).to_local().predict(locked(X)),
        f"dask array: 'X' cannot be sent to Dask workers (its task 'add': {LOCK})",
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_be_sent_is_named(processes: Client, caplog: pytest.LogCaptureFixture, call: str) -> None:
    function, message = CALLS[call]
    check_refusal(lambda: function(processes), message, processes, caplog)


def test_other_errors_of_types_are_left_alone(processes: Client) -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise TypeError("no such thing")

    with processes.as_current(), pytest.raises(TypeError, match="no such thing"):
        Classifier().fit(lazy_x.map_blocks(fail, dtype="f4"), lazy_y, client=processes)
