"""The door of LangChain's agents, under its short name."""

from gradeloop.integrations.langchain import RubricEvaluation, RubricMiddleware, RubricState

__all__ = ["RubricEvaluation", "RubricMiddleware", "RubricState"]
