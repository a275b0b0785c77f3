"""Language identification: fastText over Arrow buffers, script, paragraphs, rules by language."""

from gristmill.stages.language.stage import Language

__all__ = ["Language"]
