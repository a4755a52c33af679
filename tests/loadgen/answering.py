"""A server that answers by a table of routes, and what preflight says of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from loadgen.preflight import Preflight, probe

WORDS = [f"w{i}" for i in range(128)]
Answer = tuple[int, str, bytes]
MODELS: Answer = (200, "application/json", b'{"data":[{"id":"m1","max_model_len":512},{"id":"m2"}]}')


def sse(num_tokens: int, usage: dict[str, Any] | None) -> bytes:
    events = [{"choices": [{"index": 0, "text": f"t{i} ", "finish_reason": None}]} for i in range(num_tokens)]
    events.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    if usage is not None:
        events.append({"choices": [], "usage": usage})  # type: ignore[dict-item]
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def completions(
    template_tokens: int = 0, per_word: int = 1, ignores_length: bool = False
) -> Callable[[Any], Answer]:
    def answer(request: Any) -> Answer:
        prompt = request["prompt"] if "prompt" in request else request["messages"][0]["content"]
        n = 3 if ignores_length else request["max_tokens"]
        counted = per_word * len(prompt.split()) + template_tokens
        usage = {"prompt_tokens": counted, "completion_tokens": n, "total_tokens": counted + n}
        return 200, "text/event-stream", sse(n, usage)

    return answer


Routes = Mapping[str, Answer | Callable[[Any], Answer]]


def make_server(port: int, routes: Routes) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            request = json.loads(self.rfile.read(length)) if length else None
            found = routes.get(self.path, (404, "text/html", b"<h1>not here</h1>"))
            status, kind, body = found(request) if callable(found) else found
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, *args: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


@contextmanager
def server(routes: Routes) -> Iterator[str]:
    http = make_server(0, routes)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def ask(url: str, api: str = "auto", model: str | None = None, **more: Any) -> Preflight:
    return probe(url, api=api, model=model, words=WORDS, **{"headers": {}, "timeout_s": 5.0, **more})


def found_in(preflight: Preflight, what: str) -> str:
    return next(f"{f.found} | {f.meaning}" for f in preflight.findings if f.what == what)
