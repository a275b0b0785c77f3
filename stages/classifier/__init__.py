"""Any fastText model as a quality, toxicity or domain score: rules, training, report."""

from gristmill.stages.classifier.stage import Classifier

__all__ = ["Classifier"]
