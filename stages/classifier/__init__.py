"""Any fastText model as a quality, toxicity or domain score, and the rules that keep by it."""

from gristmill.stages.classifier.stage import Classifier

__all__ = ["Classifier"]
