"""Docent's own example of a judge, called by gradeloop: only the imports are others."""

import asyncio

from gradeloop.docent import (
    AgentRun,
    AssistantMessage,
    BaseLLMService,
    JudgeResultWithCitations,
    ModelOption,
    ResultType,
    Rubric,
    Transcript,
    UserMessage,
    build_judge,
)

rubric = Rubric(
    rubric_text="""
    Evaluate whether the agent provided a helpful and accurate response.

    Decision procedure:
    1. Check if the agent understood the user's question
    2. Verify the response directly addresses the question
    3. Assess accuracy of any factual claims
    """,
    output_schema={
        "type": "object",
        "properties": {
            "label": {"type": "string", "enum": ["helpful", "not helpful"]},
            "explanation": {"type": "string", "citations": True},
        },
        "required": ["label", "explanation"],
        "additionalProperties": False,
    },
    judge_model=ModelOption(provider="openai", model_name="gpt-5-mini"),
)

agent_run = AgentRun(
    transcripts=[
        Transcript(
            messages=[
                UserMessage(content="What is the capital of France?"),
                AssistantMessage(content="The capital of France is Paris."),
            ]
        )
    ]
)


async def evaluate() -> None:
    """Judge the run, and print what the judge says."""
    judge = build_judge(rubric, BaseLLMService())
    result = await judge(agent_run)
    if result.result_type == ResultType.DIRECT_RESULT:
        cited = JudgeResultWithCitations.from_judge_result(result, rubric.output_schema, agent_run)
        print(f"Label: {result.output['label']}")
        print(f"Explanation: {cited.output['explanation']}")
    else:
        print(f"Judge failed: {result.result_metadata}")


if __name__ == "__main__":
    asyncio.run(evaluate())
