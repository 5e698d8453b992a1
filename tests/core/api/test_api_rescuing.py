"""What a run has trained is kept, whatever ends the run."""

import numpy as np
import pytest

from dsinga.api.trained import rescuing


@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt])
def test_what_was_trained_is_kept_however_a_run_ends(end):
    kept = []

    def run() -> None:
        with rescuing("the owner", kept.append) as rescued:
            rescued.keep(3, {"w": np.ones(2, np.float32)}, {}, None)
            if end is not None:
                raise end

    if end is None:
        run()
    else:
        with pytest.raises(end):
            run()
    assert [(each.step, *each.params) for each in kept] == [(3, "w")]


def test_nothing_is_kept_of_a_run_that_left_nothing():
    kept = []
    with pytest.raises(ValueError), rescuing("the owner", kept.append):
        raise ValueError
    assert not kept
