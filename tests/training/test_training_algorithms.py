"""TrainOneBatch algorithms by name."""

import pytest

from dsinga.errors import UserError
from dsinga.job import AlgConf, loads
from dsinga.registry import register
from dsinga.training import algorithm, bp


def test_back_propagation_is_kbp():
    assert algorithm(AlgConf(alg="kBP")) is bp


@pytest.mark.parametrize("alg", ["kBPTT"])
def test_what_is_not_there_yet_is_said_with_its_place(alg):
    conf = loads(f"train_one_batch {{\nalg: {alg} }}", "job.conf").train_one_batch
    with pytest.raises(UserError, match=f"job.conf:2: algorithm {alg} is not available yet"):
        algorithm(conf)


def test_a_users_own_may_be_a_function_or_a_class_that_takes_its_configuration():
    @register("algorithm", "Nothing")
    def nothing(net, values, records, ctx, push):
        return {}

    @register("algorithm", "Configured")
    class Configured:
        def __init__(self, conf):
            self.conf = conf

        def __call__(self, net, values, records, ctx, push):
            return {"steps": (self.conf.cd_conf.cd_k, 1)}

    assert algorithm(AlgConf(alg="kUserAlg", user_alg="Nothing")) is nothing
    own = algorithm(AlgConf(alg="kUserAlg", user_alg="Configured", cd_conf={"cd_k": 4}))
    assert own(None, {}, {}, None, None) == {"steps": (4, 1)}


def test_a_name_that_is_not_registered_is_refused():
    with pytest.raises(UserError, match="no algorithm is registered as 'kPB'; did you mean 'kBP'?"):
        algorithm(AlgConf(alg="kUserAlg", user_alg="kPB"))
