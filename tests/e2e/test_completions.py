"""Several choices, raw completions, token routes: the official openai package over the scripted
engine."""

import json

import openai
import pytest

from conftest import MODEL_NAME, say


def complete(client, prompt, **options):
    return client.completions.create(model=MODEL_NAME, prompt=prompt, **options)


@pytest.mark.parametrize("n", [1, 2, 8, 16])
def test_choices(client, n):
    reply = client.chat.completions.create(model=MODEL_NAME, messages=say("choice"), n=n, seed=7)
    assert [c.index for c in reply.choices] == list(range(n))
    assert [c.message.content for c in reply.choices] == [f"{i} of 7" for i in range(n)]
    assert {c.finish_reason for c in reply.choices} == {"stop"}
    assert reply.usage.completion_tokens == sum(len(f"{i} of 7") + 1 for i in range(n))
    texts, ends = [""] * n, [None] * n
    for chunk in client.chat.completions.create(model=MODEL_NAME, messages=say("choice"), n=n,
                                                seed=7, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [c.message.content for c in reply.choices]
    assert ends == ["stop"] * n


def test_one_long_choice_holds_up_no_other(client):
    """More choices than slots, one request: all of them come."""
    reply = client.chat.completions.create(model=MODEL_NAME, messages=say("slow 5 20"), n=7)
    assert [c.message.content for c in reply.choices] == ["abcdefghijklmnopqrst"] * 7


@pytest.mark.parametrize("n", [0, -1, 17, 513])
def test_too_many_choices(daemon, n):
    for stream in (False, True):
        status, headers, body = daemon.request(
            "POST", "/v1/chat/completions", {"messages": say("hi"), "n": n, "stream": stream})
        assert status == 400 and json.loads(body)["error"]["param"] == "n"


def test_a_failing_choice_ends_the_reply(client):
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=MODEL_NAME, messages=say("fail"), n=3)
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model=MODEL_NAME, messages=say("fail"), n=3,
                                            stream=True))


def test_text(client):
    reply = complete(client, "echo some text", max_tokens=50)
    assert reply.object == "text_completion" and reply.id.startswith("cmpl-")
    assert reply.choices[0].text == "some text"
    assert reply.usage.prompt_tokens == len("echo some text")
    text = "".join(c.text for chunk in complete(client, "echo some text", stream=True)
                   for c in chunk.choices)
    assert text == "some text"


def test_ids_and_lists(client):
    ids = [list(b"echo one"), list(b"echo two")]
    assert complete(client, ids[0]).choices[0].text == "one"
    for prompt in (ids, ["echo one", "echo two"]):
        reply = complete(client, prompt, n=2)
        assert [(c.index, c.text) for c in reply.choices] == [
            (0, "one"), (1, "one"), (2, "two"), (3, "two")]
        assert reply.usage.prompt_tokens == 16
        texts = {}
        for chunk in complete(client, prompt, n=2, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        assert texts == {0: "one", 1: "one", 2: "two", 3: "two"}


def test_echo_and_suffix(client):
    for prompt in ("echo more", list(b"echo more")):
        assert complete(client, prompt, echo=True).choices[0].text == "echo moremore"
        text = "".join(c.text for chunk in complete(client, prompt, echo=True, stream=True)
                       for c in chunk.choices)
        assert text == "echo moremore"
    assert complete(client, "params", suffix="} end").choices[0].text.endswith(" suffix=} end")
    assert complete(client, "params", extra_body={"add_special_tokens": True}
                    ).choices[0].text.endswith(" bos")
    reply = complete(client, "echo x", echo=True, max_tokens=0)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("echo x", "length")
    assert reply.usage.completion_tokens == 0


def test_logprobs(client):
    for stream in (False, True):
        reply = complete(client, "echo ab", logprobs=1, stream=stream)
        chunks = list(reply) if stream else [reply]
        tokens = [t for chunk in chunks for c in chunk.choices if c.logprobs
                  for t in c.logprobs.tokens]
        assert tokens == ["a", "b", ""]


def test_prompt_logprobs(client):
    """As old clients score texts (echo, logprobs, no tokens), and as vLLM's ask for them."""
    prompt = "echo é"
    for stream in (False, True):
        reply = complete(client, prompt, echo=True, logprobs=1, max_tokens=0, stream=stream)
        choices = [c for r in (reply if stream else [reply]) for c in r.choices if c.text]
        assert [c.text for c in choices] == [prompt]
        lists = choices[0].logprobs
        assert lists.tokens == [*"echo ", "�", "�"]
        assert lists.token_logprobs == [None] + 6 * [-0.5]
        assert lists.top_logprobs == [None] + 6 * [{"A": -0.25}]
        assert lists.text_offset == [0, 1, 2, 3, 4, 5, 6]
    entry = lambda c, rank: {"logprob": -0.5, "rank": rank, "decoded_token": c}
    for n in (1, 3):
        reply = complete(client, ["echo a", "echo b"], n=n, extra_body={"prompt_logprobs": 0})
        for i, choice in enumerate(reply.choices):
            text = "echo a" if i < n else "echo b"
            assert choice.model_extra["prompt_logprobs"] == [None] + [
                {str(ord(c)): entry(c, 2)} for c in text[1:]]
    reply = client.chat.completions.create(model=MODEL_NAME, messages=say("echo a"), n=2,
                                           extra_body={"prompt_logprobs": 1})
    prompt = reply.model_extra["prompt_logprobs"]
    assert len(prompt) == reply.usage.prompt_tokens and prompt[0] is None
    assert prompt[4] == {"101": entry("e", 2), "65": {"logprob": -0.25, "rank": 1,
                                                      "decoded_token": "A"}}


def test_bad_completions(client):
    for options, param in (({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"),
                           ({"prompt": [1, "a"]}, "prompt[1]"), ({"prompt": [[]]}, "prompt[0]"),
                           ({"prompt": [-1]}, "prompt[0]"), ({"prompt": 5}, "prompt"),
                           ({"prompt": [1], "suffix": "x"}, "suffix"),
                           ({"prompt": "x", "logprobs": 21}, "logprobs"),
                           ({"prompt": "x", "echo": True, "logprobs": 1, "suffix": "y"}, "suffix"),
                           ({"prompt": "x", "echo": True, "logprobs": 1, "stream": True, "n": 2},
                            "n"),
                           ({"prompt": "x", "stream": True, "extra_body": {"prompt_logprobs": 1}},
                            "prompt_logprobs"),
                           ({"prompt": "x", "extra_body": {"prompt_logprobs": 21}},
                            "prompt_logprobs"),
                           ({"prompt": "x", "best_of": 4}, "best_of"),
                           ({"prompt": ["x"] * 129}, "prompt"),
                           ({"prompt": ["x"] * 65, "n": 2}, "n"),
                           ({"prompt": "x", "extra_body": {"tools": []}}, "tools")):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model=MODEL_NAME, **options)
        assert error.value.param == param, options
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")


def test_prefill_only(client):
    """max_tokens 0 computes the prompt and says nothing."""
    for stream in (False, True):
        reply = client.chat.completions.create(model=MODEL_NAME, messages=say("echo abc"),
                                               max_tokens=0, stream=stream)
        if stream:
            chunks = list(reply)
            assert "".join(c.delta.content or "" for k in chunks for c in k.choices) == ""
            assert chunks[-1].usage.completion_tokens == 0
        else:
            assert reply.choices[0].message.content is None
            assert reply.choices[0].finish_reason == "length"
            assert reply.usage.completion_tokens == 0 and reply.usage.prompt_tokens > 0


def test_more_parameters_arrive(client):
    reply = client.chat.completions.create(
        model=MODEL_NAME, messages=say("params"), logit_bias={"5": 1, "6": -1}, max_tokens=900,
        extra_body={"min_tokens": 3, "cache_salt": "s", "allowed_token_ids": [1, 2, 3],
                    "return_token_ids": True, "priority": 1},
        user="u", metadata={"a": "b"}, store=False, service_tier="auto")
    assert "background=1" in reply.choices[0].message.content
    assert reply.choices[0].message.content.endswith(" min=3 salt=s bias=2 allowed=3")
    ids = reply.model_extra["tensorfold"]["token_ids"]
    assert bytes(i for i in ids if i < 256).decode() == reply.choices[0].message.content


def test_continue_final_message(client):
    messages = say("hi") + [{"role": "assistant", "content": "params"}]
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL_NAME, messages=messages)
    reply = client.chat.completions.create(
        model=MODEL_NAME, messages=messages,
        extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert reply.choices[0].message.content.endswith(" continues")


def post(daemon, path, body):
    status, _, reply = daemon.request("POST", path, body)
    return status, json.loads(reply)


def test_tokenize_and_back(daemon):
    for prefix in ("", "/v1"):
        status, reply = post(daemon, prefix + "/tokenize", {"prompt": "abc",
                                                            "return_token_strs": True})
        assert status == 200
        assert reply == {"count": 3, "max_model_len": 4096, "tokens": [97, 98, 99],
                         "token_strs": ["a", "b", "c"]}
        assert post(daemon, prefix + "/detokenize", {"tokens": [104, 105]}) == (
            200, {"prompt": "hi"})
    status, reply = post(daemon, "/tokenize", {"messages": say("abc")})
    assert status == 200 and reply["count"] == 9
    for body, param in (({}, "prompt"), ({"prompt": 5}, "prompt"),
                        ({"prompt": "a", "messages": say("b")}, "prompt"),
                        ({"prompt": "a", "x": 1}, "x")):
        status, reply = post(daemon, "/tokenize", body)
        assert (status, reply["error"]["param"]) == (400, param)
    for body, param in (({}, "tokens"), ({"tokens": [1, 2.5]}, "tokens[1]"),
                        ({"tokens": [9999]}, "tokens[0]"), ({"tokens": "a"}, "tokens")):
        status, reply = post(daemon, "/detokenize", body)
        assert (status, reply["error"]["param"]) == (400, param)
    assert post(daemon, "/tokenize", {"prompt": "a", "model": "other"})[0] == 404
