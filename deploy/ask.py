#!/usr/bin/env python3
"""Asks a running server one question over HTTP and prints the answer as it streams. Standard library only.

usage: ask.py BASE_URL PROMPT [--max-tokens N]
"""
import argparse
import json
import sys
import urllib.error
import urllib.request


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url")
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=256)
    args = parser.parse_args()
    body = {
        "messages": [{"role": "user", "content": args.prompt}],
        "max_tokens": args.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with urllib.request.urlopen(args.base_url + "/v1/models", timeout=30) as reply:
        body["model"] = json.load(reply)["data"][0]["id"]
    request = urllib.request.Request(
        args.base_url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    ended = False
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            data = line.decode().strip().removeprefix("data: ")
            if data == "[DONE]":
                ended = True
                break
            if not data:
                continue
            event = json.loads(data)
            if "error" in event:
                sys.exit(f"the server answered: {event['error']['message']}")
            for choice in event["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
    print()
    if not ended:
        sys.exit("the stream broke off")


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as failure:
        sys.exit(f"the server answered {failure.code}: {failure.read().decode(errors='replace')}")
    except (urllib.error.URLError, OSError) as failure:
        sys.exit(f"the server cannot be reached: {failure}")
