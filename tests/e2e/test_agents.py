"""Agents' own loops over the scripted engine: several turns of calls and results, through the
frameworks that people use."""

import asyncio
import os

import pydantic
import pytest

from conftest import MODEL_NAME, say

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")


class City(pydantic.BaseModel):
    name: str
    large: bool


def agent_of(daemon, kind: str, **options):
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=daemon.url + "/v1", api_key="none")
    model = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[kind](
        MODEL_NAME, provider=provider)
    return pydantic_ai.Agent(model, **options)


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_of_many_turns(daemon, kind, stream):
    agent = agent_of(daemon, kind, instructions="Be brief.")
    turns = []

    @agent.tool_plain
    def step(n: int) -> str:
        """The next step."""
        turns.append(n)
        # The scripted engine does what the last message says.
        return 'call step {"n": %d}' % (n + 1) if n < 20 else "echo done after 20"

    async def go():
        if not stream:
            return (await agent.run('call step {"n": 1}')).output
        async with agent.run_stream('call step {"n": 1}') as result:
            return await result.get_output()

    assert asyncio.run(go()) == "done after 20"
    assert turns == list(range(1, 21))


def test_a_typed_answer(daemon):
    agent = agent_of(daemon, "chat", output_type=pydantic_ai.ToolOutput(City, name="city"))
    result = agent.run_sync('call city {"name": "Bern", "large": false}')
    assert result.output == City(name="Bern", large=False)


def test_the_client_parses_models(client):
    reply = client.chat.completions.parse(model=MODEL_NAME, response_format=City,
                                          messages=say('echo {"name": "Oslo", "large": true}'))
    assert reply.choices[0].message.parsed == City(name="Oslo", large=True)
    answer = client.responses.parse(model=MODEL_NAME, text_format=City,
                                    input='echo {"name": "Oslo", "large": true}')
    assert answer.output_parsed == City(name="Oslo", large=True)
    assert os.environ["TF_SCRIPTED"]
