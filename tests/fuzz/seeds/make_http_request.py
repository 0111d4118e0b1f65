#!/usr/bin/env python3
"""Writes the seeds of http_request_fuzz beside itself: bodies (first byte below 128 picks the parser) and whole requests (from 128 on)."""
import json
import pathlib

OUT = pathlib.Path(__file__).parent / "http_request"
COMPLETION, CHAT, TOKENIZE, DETOKENIZE = range(4)

SAMPLING = {
    "model": "tiny", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -1,
    "frequency_penalty": 1, "seed": -7, "n": 2, "best_of": 2, "stop": ["a", "\u00e9"], "stop_token_ids": [1, 2], "min_tokens": 1, "ignore_eos": True,
    "logit_bias": {"5": -100, "999": 1.5}, "stream": True, "stream_options": {"include_usage": True}, "include_stop_str_in_output": True,
}
TALK = [
    {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\":[1]}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "4"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]

BODIES = {
    "completion": (COMPLETION, {**SAMPLING, "prompt": ["a", "b"], "logprobs": 2, "echo": True}),
    "completion_ids": (COMPLETION, {"prompt": [[1, 2], [999]], "max_completion_tokens": 3}),
    "chat": (CHAT, {**SAMPLING, "messages": TALK, "logprobs": True, "top_logprobs": 3, "tools": TOOLS, "tool_choice": "auto", "response_format": {"type": "text"},
                    "chat_template_kwargs": {"k": 1}}),
    "tokenize": (TOKENIZE, {"messages": TALK, "return_token_strs": True}),
    "tokenize_text": (TOKENIZE, {"prompt": "a", "add_special_tokens": False}),
    "detokenize": (DETOKENIZE, {"tokens": [1, 2, 3]}),
    "empty": (CHAT, {"messages": []}),
    "parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nAuthorization: Bearer key\r\n"
REQUESTS = {
    "get": b"GET http://h/v1/models/org%2Fname?x HTTP/1.1\r\nHost: h\r\nx-request-id: 1\r\n\r\n",
    "pipelined": b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n\r\nHEAD /health HTTP/1.0\r\n\r\n",
    "post": POST + b"Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}",
    "chunked": POST + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n7;e=1\r\n{\"promp\r\n7\r\nt\":\"a\"}\r\n0\r\nT: r\r\n\r\n",
}


def main():
    OUT.mkdir(exist_ok=True)
    for name, (parser, body) in BODIES.items():
        (OUT / name).write_bytes(bytes([parser]) + json.dumps(body).encode())
    for name, text in REQUESTS.items():
        for cut in (0, 255):
            (OUT / f"{name}_{cut}").write_bytes(bytes([max(cut, 130)]) + text)


if __name__ == "__main__":
    main()
