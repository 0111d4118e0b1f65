#!/usr/bin/env python3
"""The official OpenAI client against a running server: every call works unchanged, every error comes as the class it should.

usage: openai_client.py BASE_URL MODEL [--api-key KEY]
BASE_URL is http://HOST:PORT, with or without /v1. With a key, the server must have been started with it.
"""
import argparse
import math
import sys

import openai

PROMPT = "Tell me in a few words what the sea looks like at night"
TALK = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": PROMPT}]


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def expect_error(kind, what, call):
    try:
        call()
    except kind as error:
        expect(error.body and error.body.get("message"), f"{what}: an OpenAI-shaped body")
        return error
    raise AssertionError(f"{what}: {kind.__name__} was not raised")


def usage_adds_up(usage):
    expect(usage.prompt_tokens > 0, "prompt tokens are counted")
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "usage adds up")
    expect(0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens, "cached tokens are part of the prompt")


def models(client, model):
    names = [item.id for item in client.models.list()]
    expect(model in names, "the model is listed")
    expect(client.models.retrieve(model).id == model, "the model can be retrieved")
    error = expect_error(openai.NotFoundError, "unknown model", lambda: client.models.retrieve("no-such-model"))
    expect(error.code == "model_not_found", "unknown model: code")


def completion_whole(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=5, temperature=0)
    expect(answer.object == "text_completion" and answer.model == model, "completion: head")
    expect(len(answer.choices) == 1 and answer.choices[0].text, "completion: text")
    expect(answer.choices[0].finish_reason in ("stop", "length"), "completion: finish reason")
    expect(answer.usage.completion_tokens <= 5, "completion: the limit is kept")
    usage_adds_up(answer.usage)


def completion_streamed(client, model):
    ask = dict(model=model, prompt=PROMPT, max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
    whole = client.completions.create(**ask)
    chunks = list(client.completions.create(stream=True, **ask))
    expect(all(len(chunk.choices) == 1 for chunk in chunks), "no chunk without choices unless usage is asked for")
    expect("".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text, "streamed text equals whole text")
    expect(chunks[-1].choices[0].finish_reason == "length", "the last chunk says why it ended")
    expect(all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1]), "and only the last")
    expect(whole.usage.completion_tokens == 8, "ignore_eos runs to the limit")


def completion_logprobs(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2, extra_body={"ignore_eos": True})
    scores = answer.choices[0].logprobs
    expect(len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == len(scores.text_offset) == 4, "one entry a token")
    expect(all(math.isfinite(p) and p <= 0 for p in scores.token_logprobs), "logprobs are logarithms of probabilities")
    expect(all(1 <= len(top) <= 3 for top in scores.top_logprobs), "the best two, and the chosen one")
    expect(scores.text_offset[0] == 0 and scores.text_offset == sorted(scores.text_offset), "offsets grow")


def completion_echo(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=0, echo=True, logprobs=0)
    expect(answer.choices[0].text == PROMPT, "echo with max_tokens 0 is the prompt")
    expect(answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 0, "echo generates nothing")
    scores = answer.choices[0].logprobs
    expect(scores.token_logprobs[0] is None and all(p is not None for p in scores.token_logprobs[1:]), "the first token has no logprob")


def completion_many(client, model):
    answer = client.completions.create(model=model, prompt=[PROMPT, "Two and two"], n=2, max_tokens=3, extra_body={"ignore_eos": True})
    expect([choice.index for choice in answer.choices] == [0, 1, 2, 3], "n choices for each prompt, in order")
    expect(answer.usage.completion_tokens == 12, "usage is summed over all choices")
    stream = client.completions.create(model=model, prompt=PROMPT, n=3, max_tokens=3, stream=True, stream_options={"include_usage": True},
                                       extra_body={"ignore_eos": True})
    chunks = list(stream)
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 9, "the usage chunk comes last and is summed")
    expect({chunk.choices[0].index for chunk in chunks[:-1]} == {0, 1, 2}, "choices are interleaved by index")
    expect(all(chunk.usage is None for chunk in chunks[:-1]), "usage is null before the last chunk")


def stop_strings(client, model):
    ask = dict(model=model, prompt=PROMPT, max_tokens=12, temperature=0, extra_body={"ignore_eos": True})
    text = client.completions.create(**ask).choices[0].text
    stop = text.split()[1] if len(text.split()) > 1 else text.strip()
    cut = client.completions.create(stop=[stop], **ask).choices[0]
    expect(cut.finish_reason == "stop" and cut.text == text[: text.index(stop)], "the text ends before the stop string")
    chunks = client.completions.create(stop=[stop], stream=True, **ask)
    expect("".join(chunk.choices[0].text for chunk in chunks) == cut.text, "no part of a stop string is streamed")


def chat_whole(client, model):
    answer = client.chat.completions.create(model=model, messages=TALK, max_completion_tokens=6, temperature=0)
    expect(answer.object == "chat.completion", "chat: object")
    expect(answer.choices[0].message.role == "assistant" and answer.choices[0].message.content, "chat: message")
    expect(answer.usage.completion_tokens <= 6, "max_completion_tokens is kept")
    usage_adds_up(answer.usage)
    parts = [{"type": "text", "text": PROMPT}]
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": parts}], max_tokens=3)
    expect(answer.choices[0].message.content is not None, "content may be a list of text parts")


def chat_streamed(client, model):
    ask = dict(model=model, messages=TALK, max_tokens=6, temperature=0, extra_body={"ignore_eos": True})
    whole = client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    expect(chunks[0].choices[0].delta.role == "assistant", "the first delta names the role")
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 6, "usage comes last")
    body = chunks[:-1]
    expect("".join(chunk.choices[0].delta.content or "" for chunk in body) == whole, "streamed text equals whole text")
    expect(body[-1].choices[0].finish_reason == "length", "the last delta says why it ended")
    expect(len({chunk.id for chunk in chunks}) == 1, "one id for the whole answer")


def chat_logprobs(client, model):
    answer = client.chat.completions.create(model=model, messages=TALK, max_tokens=3, logprobs=True, top_logprobs=2, temperature=0,
                                            extra_body={"ignore_eos": True})
    content = answer.choices[0].logprobs.content
    expect(len(content) == 3 and all(len(item.top_logprobs) == 2 for item in content), "one entry a token, two alternatives each")
    expect(all(bytes(item.bytes).decode("utf-8", "replace") == item.token for item in content), "bytes are the token's text")
    chunks = list(client.chat.completions.create(model=model, messages=TALK, max_tokens=3, logprobs=True, top_logprobs=2, temperature=0, stream=True,
                                                 extra_body={"ignore_eos": True}))
    scored = [item for chunk in chunks if chunk.choices[0].logprobs for item in chunk.choices[0].logprobs.content]
    expect([item.token for item in scored] == [item.token for item in content], "streamed logprobs equal whole ones")


def seeds(client, model):
    ask = dict(model=model, prompt=PROMPT, max_tokens=6, temperature=1, seed=7)
    texts = {client.completions.create(**ask).choices[0].text for _ in range(2)}
    expect(len(texts) == 1, "a seed repeats its text")


def errors(client, model):
    chat = client.chat.completions.create
    error = expect_error(openai.BadRequestError, "temperature", lambda: chat(model=model, messages=TALK, temperature=-1))
    expect(error.param == "temperature", "the field at fault is named")
    expect_error(openai.BadRequestError, "no messages", lambda: chat(model=model, messages=[]))
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    error = expect_error(openai.BadRequestError, "image part", lambda: chat(model=model, messages=[{"role": "user", "content": image}]))
    expect("messages[0].content[0]" in error.body["message"], "the part at fault is named")
    error = expect_error(openai.BadRequestError, "bias", lambda: chat(model=model, messages=TALK, logit_bias={"99999999": 1}))
    expect("99999999" in error.body["message"], "the id at fault is named")
    error = expect_error(openai.NotFoundError, "unknown model", lambda: chat(model="no-such-model", messages=TALK))
    expect(error.code == "model_not_found", "unknown model: code")
    stream = lambda: list(chat(model=model, messages=TALK, top_p=2, stream=True))
    expect_error(openai.BadRequestError, "bad stream request", stream)


def wrong_key(base_url, model):
    client = openai.OpenAI(base_url=base_url, api_key="not-the-key", max_retries=0)
    expect_error(openai.AuthenticationError, "wrong key", client.models.list)
    expect_error(openai.AuthenticationError, "wrong key", lambda: client.completions.create(model=model, prompt="x"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_url")
    parser.add_argument("model")
    parser.add_argument("--api-key")
    args = parser.parse_args()
    base_url = args.base_url.rstrip("/")
    if not base_url.endswith("/v1"):
        base_url += "/v1"
    client = openai.OpenAI(base_url=base_url, api_key=args.api_key or "none", max_retries=0, timeout=120)
    cases = (models, completion_whole, completion_streamed, completion_logprobs, completion_echo, completion_many, stop_strings, chat_whole,
             chat_streamed, chat_logprobs, seeds, errors)
    failures = 0
    for case in cases:
        try:
            case(client, args.model)
            print(f"ok    {case.__name__}", flush=True)
        except Exception as error:  # every case is tried
            failures += 1
            print(f"FAIL  {case.__name__}: {type(error).__name__}: {error}", flush=True)
    if args.api_key:
        wrong_key(base_url, args.model)
        print("ok    wrong_key")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
