"""Advice in messages, on the command line and in Python."""

from dsinga.base.advice import command_line, how_to_resume, job_field, option


def test_in_python():
    assert how_to_resume() == "resume=True"
    assert option("resume") == "resume=True"
    assert option("data_root", "FOLDER") == "data_root=FOLDER"
    assert job_field("train_steps", "40") == "train_steps=40"
    assert option("checkpoint", "PATH", python="params=PATH") == "params=PATH"


def test_on_the_command_line():
    with command_line(["train", "my job.conf", "--set", "seed=2"]):
        assert how_to_resume() == "dsinga train 'my job.conf' --set seed=2 --resume"
        assert option("resume") == "--resume"
        assert option("data_root", "FOLDER") == "--data-root FOLDER"
        assert job_field("train_steps", "40") == "--set train_steps=40"
    with command_line(["train", "job.conf", "--resume"]):
        assert how_to_resume() == "dsinga train job.conf --resume"
    with command_line(["train", "--resume", "run/checkpoint/step40", "job.conf"]):
        assert how_to_resume() == "dsinga train --resume job.conf"
    with command_line(["train", "--resume=elsewhere", "job.conf"]):
        assert how_to_resume() == "dsinga train --resume job.conf"
    with command_line(["train", "job.conf", "--resume", "auto"]):
        assert how_to_resume() == "dsinga train job.conf --resume auto"
    with command_line(["train", "--resume=auto", "job.conf"]):
        assert how_to_resume() == "dsinga train --resume auto job.conf"
    assert how_to_resume() == "resume=True"
