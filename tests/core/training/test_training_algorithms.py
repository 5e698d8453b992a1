"""TrainOneBatch algorithms by name."""

import pytest

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import AlgConf, AlgType
from dsinga.training import algorithm


@pytest.mark.parametrize("alg", [alg for alg in AlgType if alg is not AlgType.kUserAlg])
def test_every_algorithm_that_a_job_can_name_is_registered(alg):
    assert callable(algorithm(AlgConf(alg=alg)))


def test_a_users_algorithm_may_be_a_function_or_a_class_made_from_its_configuration():
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
    train_one_batch = algorithm(AlgConf(alg="kUserAlg", user_alg="Configured", cd_conf={"cd_k": 4}))
    assert train_one_batch(None, {}, {}, None, None) == {"steps": (4, 1)}


def test_a_name_that_is_not_registered_is_refused():
    with pytest.raises(UserError, match="no algorithm is registered as 'kPB'; did you mean 'kBP'?"):
        algorithm(AlgConf(alg="kUserAlg", user_alg="kPB"))
