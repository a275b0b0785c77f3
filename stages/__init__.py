"""What happens to documents: one module or package a stage, compiled loops in `kernels`."""

from gristmill.stages.base import BatchStage, GlobalStage, Stage
from gristmill.stages.errors import ConfigError, GristmillError, RunError
from gristmill.stages.registry import create, get, names

__all__ = ["BatchStage", "ConfigError", "GlobalStage", "GristmillError", "RunError", "Stage", "create", "get", "names"]
