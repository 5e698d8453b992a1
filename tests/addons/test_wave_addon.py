"""An add-on of another distribution, installed by pip: its components work wherever built-in ones do."""

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import numpy as np
import pytest

from dsinga.job import load
from dsinga.nn import load_model
from tests.support.refusals import refused

pytestmark = pytest.mark.ci
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "support" / "wave_addon"
JOB = """
name: "waves"
train_steps: 4
disp_freq: 2
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.wave" batchsize: 8 } }
  layer { name: "fc" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "wave" wave_conf { frequency: 2 } user_type: "kWave" wave { phase: 0.5 } srclayers: "fc" }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "wave" srclayers: "data" }
  layer { name: "gap" type: kGatheredMetrics srclayers: "wave" srclayers: "data" include: kTest
    gatheredmetrics_conf { metric: "wave_gap" } }
}
"""
TRAIN = """
import sys
import numpy as np
import dsinga
from dsinga import nn

assert "dsinga_wave" not in sys.modules
random = np.random.default_rng(0)
x, y = random.normal(size=(32, 4)).astype(np.float32), random.integers(3, size=32)
model = nn.Sequential([nn.Dense(3), nn.Wave(frequency=2)])
model.compile("sgd", nn.SoftmaxLoss(), metrics=["wave_gap"])
model.fit(x, y, epochs=2, validation_data=(x, y), progress=False)
print(sorted(model.history.columns))
model.save("saved")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The Python of an environment that has the add-on, and all packages of this one."""
    folder = tmp_path_factory.mktemp("wave")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    packages = sysconfig.get_path("purelib", vars={"base": str(folder / "env"), "platbase": str(folder / "env")})
    above = [path for path in reversed(sys.path) if "site-packages" in path]  # a newer setuptools is in the last one
    (Path(packages) / "above.pth").write_text("\n".join([str(ROOT), *above]) + "\n")
    shutil.copytree(SOURCE, folder / "source")  # in which setuptools builds
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", str(folder / "source")]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, timeout=100)
    return python


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    table = np.column_stack([random.integers(3, size=64), random.normal(size=(64, 4))])
    np.savetxt(tmp_path / "train.wave", table, fmt="%g")
    (tmp_path / "job.conf").write_text(JOB)
    return tmp_path


def run(environment, folder, *arguments):
    """Run the Python of the environment in a folder, and return what it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # of plugins, two versions of which may be on the path
    command = [str(environment), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_components_work_in_a_job_file_and_in_commands(environment, folder):
    assert "hello" in run(environment, folder, "-m", "dsinga", "--help")
    assert run(environment, folder, "-m", "dsinga", "hello") == "hello from dsinga-wave\n"
    assert "kWave" in run(environment, folder, "-m", "dsinga", "show", "job.conf")
    output = run(environment, folder, "-m", "dsinga", "train", "job.conf", "--workspace", "run")
    assert "Result of 'waves' after 4 steps" in output
    (metadata,) = (folder / "run").glob("checkpoint/step*/checkpoint.json")
    assert "layer.kWave is of the distribution dsinga-wave" in metadata.read_text()


def test_its_components_work_on_worker_processes(environment, folder):
    program = """
    import dsinga
    from dsinga.job import ClusterConf, load

    if __name__ == "__main__":
        job = load("job.conf").replace(cluster=ClusterConf(nworkers_per_group=2))
        result = dsinga.train(job, data_root=".")
        print(result.step)
    """
    (folder / "program.py").write_text(textwrap.dedent(program))
    assert run(environment, folder, "program.py").split()[-1] == "4"


def test_they_work_in_nn_and_a_process_without_them_names_the_distribution(environment, folder):
    assert "wave_gap" in run(environment, folder, "-c", TRAIN)
    sentence = "it is of the distribution dsinga-wave: pip install dsinga-wave"
    refused(lambda: load_model(folder / "saved"), rf"job.conf:\d+: .*no layer is registered as 'kWave'; {sentence}$")
    (folder / "other.conf").write_text(JOB.replace('wave_conf { frequency: 2 } user_type: "kWave"', "type: kReLU"))
    refused(lambda: load(folder / "other.conf"), rf"other.conf:9: .* has no field 'wave'; {sentence}$")
    assert run(environment, folder, "-c", "from dsinga.nn import load_model; print(load_model('saved'))")


def test_it_keeps_the_contract(environment, folder):
    text = "from dsinga.testing import AddonContract\n\n\nclass TestWave(AddonContract):\n"
    (folder / "test_addon.py").write_text(f"{text}    distribution = 'dsinga-wave'\n")
    assert "3 passed" in run(environment, folder, "-m", "pytest", "-q", "test_addon.py")
