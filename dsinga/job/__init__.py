"""The job as data: one schema that the text reader, the Python builders and the checks share."""

from dsinga.job.enums import *  # noqa: F403
from dsinga.job.layerconf import *  # noqa: F403
from dsinga.job.message import JobError, Message, Where
from dsinga.job.schema import *  # noqa: F403
