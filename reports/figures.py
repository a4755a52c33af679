"""The figures of one run: one dict names them all, in the order of the page.

Decides which figures there are and what each is for; `latency_figures`, `time_figures` and
`scheduler_figures` draw them with the looks of `canvas`, from the series of `loadgen.measure`. A figure whose
data the run does not hold returns False and is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports import latency_figures as latency
from reports import scheduler_figures as scheduler
from reports import time_figures as times
from reports.figure_spec import FigureSpec

if TYPE_CHECKING:
    from reports.subject import Subject


DECISIONS = (
    "Steps of the reference engine, one row a request in order of arrival: whose prompt was computed "
    "(numbers: its tokens), who got a token, who waited for admission, stood by, or had lost its memory."
)


FIGURES: dict[str, FigureSpec[Subject]] = {
    "latency_spectrum": FigureSpec(
        title="Latency by percentile",
        caption="How slow the slowest requests are: each step to the right is ten times rarer. "
        "TTFT and E2E count from the scheduled instant.",
        draw=latency.draw_spectrum,
    ),
    "latency_cdf": FigureSpec(
        title="Latency distributions",
        caption="Share of requests (TTFT, E2E) and of token gaps (ITL) that took at most this long.",
        draw=latency.draw_cdfs,
    ),
    "latency_histograms": FigureSpec(
        title="Latency histograms",
        caption="How many requests (TTFT, E2E) and token gaps (ITL) took how long, in bins of equal ratio "
        "on one axis of time.",
        draw=latency.draw_histograms,
        num_rows=latency.count_histograms,
        height_inches=3.6,
    ),
    "load": FigureSpec(
        title="Requests in flight and output rate",
        caption="Requests sent and not yet ended, and output tokens received per second. "
        "A count in flight that keeps growing means that the server does not keep up.",
        draw=times.draw_load,
        num_rows=2,
    ),
    "requests": FigureSpec(
        title="Requests on a time line",
        caption="One bar a request, from its scheduled instant to its end, in the lowest free lane; a cross "
        "marks a failure. Of a long run: those around the slowest first token.",
        draw=times.draw_requests,
    ),
    "ttft_over_time": FigureSpec(
        title="TTFT over the run",
        caption="Time to first token of each request, where it was scheduled. "
        "Ticks along the top are failures.",
        draw=times.draw_ttft_over_time,
    ),
    "ttft_by_prompt": FigureSpec(
        title="TTFT against prompt length",
        caption="What prefill costs: the lower edge is the cost of the prompt, "
        "what lies above it was waiting.",
        draw=latency.draw_ttft_by_prompt,
    ),
    "gaps": FigureSpec(
        title="Gaps between tokens over the run",
        caption="Each gap between two token events of a stream, where it ended; "
        "the stronger the colour, the more gaps.",
        draw=times.draw_gaps,
    ),
    "client_lag": FigureSpec(
        title="The client's own delay",
        caption="Send lag and receive lag beside the latencies that they could have spoiled: "
        "they should lie far below.",
        draw=latency.draw_client_lag,
    ),
    "engine": FigureSpec(
        title="Inside the engine",
        caption="Sequences running and waiting in the reference engine, the share of its KV blocks "
        "in use (the largest value of each moment), and how many requests were evicted from memory.",
        draw=times.draw_engine,
        num_rows=3,
        height_inches=4.2,
    ),
    "slowest": FigureSpec(
        title="What the slowest first tokens waited for",
        caption="The requests with the longest TTFT, each from the instant it was due to its first token, "
        "parted as the engine accounts for it; without an account, as the client saw it.",
        draw=scheduler.draw_waterfall,
        height_inches=3.8,
    ),
    "first_steps": FigureSpec(
        title="The scheduler's first decisions",
        caption=f"{DECISIONS} Each block is one step.",
        draw=scheduler.draw_first_steps,
        height_inches=4.2,
    ),
    "worst_stall": FigureSpec(
        title="The scheduler's decisions around the worst stall",
        caption=f"{DECISIONS} The thin line is the silence of the request that stalled longest.",
        draw=scheduler.draw_worst_stall,
        height_inches=4.2,
    ),
    "server": FigureSpec(
        title="What the server says of itself",
        caption="Sequences running and waiting, and the share of the KV cache in use, "
        "asked of the server's own metrics once a second.",
        draw=times.draw_server,
        num_rows=2,
    ),
}
