"""The web view through its ASGI interface: access control, messages to a page, and requests of a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from testbed.cli.web.run_list import ReportPages, RunList
from testbed.cli.web.view_application import STATIC, View, application
from testbed.observe.format.event_format import FormattedEvent
from testbed.observe.live.snapshot import Absent, Snapshot
from tests.unit.cli.asgi_client import connected, request
from tests.unit.cli.snapshots import two_nodes

TOKEN = "a-token"
HOST = "127.0.0.1:8000"
HOST_HEADER = {"host": HOST}
PAGE_HEADERS = {"host": HOST, "origin": f"http://{HOST}"}
SOCKET = f"/{TOKEN}/socket"


class Sampler:
    """Sampler of a synthetic cluster. agent_queries: for each sample, whether it queries agents."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | Absent = two_nodes()
        self.agent_queries: list[bool] = []

    def sample(self, *, agents: bool = True) -> Snapshot | Absent:
        self.agent_queries.append(agents)
        return self.snapshot


class ViewUnderTest:
    """A view of a synthetic cluster, and its application."""

    def __init__(self, runs: Path, interval: float = 0.05) -> None:
        self.sampler = Sampler()
        self.runs = RunList(runs)
        self.view = View(self.sampler, interval, self.runs, ReportPages(runs))
        self.app: ASGIApp = application(self.view, token=TOKEN, port=8000)


@asynccontextmanager
async def running_view(runs: Path, interval: float = 0.05) -> AsyncIterator[ViewUnderTest]:
    view = ViewUnderTest(runs, interval)
    sampling = asyncio.create_task(view.view.sample())
    try:
        yield view
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
        await view.view.jobs.finish()
        view.runs.close()


def run_in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test in a new event loop."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


# Access control


@run_in_event_loop
async def test_the_page_and_its_files_are_served_to_holders_of_the_token(tmp_path: Path) -> None:
    app = ViewUnderTest(tmp_path).app
    page = await request(app, f"/{TOKEN}/", HOST_HEADER)
    assert page.status == 200
    assert "<!doctype html>" in page.text
    for file in STATIC.iterdir():
        response = await request(app, f"/{TOKEN}/static/{file.name}", HOST_HEADER)
        assert (response.status, response.body) == (200, file.read_bytes())
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "/static/view.js", "/wrong/static/view.js", f"/{TOKEN}x/", "/ä/", "//", "", "*"]
)
@run_in_event_loop
async def test_requests_without_the_token_are_rejected(tmp_path: Path, path: str) -> None:
    response = await request(ViewUnderTest(tmp_path).app, path, HOST_HEADER)
    assert response.status == 403
    assert "testbed top --web" in response.text


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "127.0.0.1:8001", "127.0.0.1", "localhost.evil.example:8000", ""]
)
@run_in_event_loop
async def test_dns_rebinding_gives_no_access(tmp_path: Path, host: str) -> None:
    app = ViewUnderTest(tmp_path).app
    assert (await request(app, f"/{TOKEN}/", {"host": host})).status == 403
    async with connected(app, SOCKET, {"host": host, "origin": f"http://{host}"}) as socket:
        assert (await socket.message())["type"] == "websocket.close"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8001", f"https://{HOST}", None])
@run_in_event_loop
async def test_a_web_socket_of_another_origin_is_rejected(tmp_path: Path, origin: str | None) -> None:
    headers = HOST_HEADER if origin is None else {**HOST_HEADER, "origin": origin}
    async with connected(ViewUnderTest(tmp_path).app, SOCKET, headers) as socket:
        assert (await socket.message())["type"] == "websocket.close"


@run_in_event_loop
async def test_a_web_socket_without_the_token_is_rejected(tmp_path: Path) -> None:
    async with connected(ViewUnderTest(tmp_path).app, "/wrong/socket", PAGE_HEADERS) as socket:
        assert (await socket.message())["type"] == "websocket.close"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
@run_in_event_loop
async def test_only_get_requests_are_accepted(tmp_path: Path, method: str) -> None:
    for path in ("", "runs/a", "static/view.js"):
        assert (await request(ViewUnderTest(tmp_path).app, f"/{TOKEN}/{path}", PAGE_HEADERS, method)).status == 405


@pytest.mark.parametrize("path", ["static/../view_server.py", "static/..%2fview_server.py", "runs/..", "none"])
@run_in_event_loop
async def test_other_files_cannot_be_reached(tmp_path: Path, path: str) -> None:
    assert (await request(ViewUnderTest(tmp_path / "runs").app, f"/{TOKEN}/{path}", HOST_HEADER)).status == 404


@run_in_event_loop
async def test_the_content_policy_forbids_other_origins(tmp_path: Path) -> None:
    policy = (await request(ViewUnderTest(tmp_path).app, f"/{TOKEN}/", HOST_HEADER)).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy


# Messages to a page


@run_in_event_loop
async def test_a_page_receives_the_complete_state_once_and_then_only_changes(tmp_path: Path) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        assert (await socket.message())["type"] == "websocket.accept"
        await socket.until("picture")
        assert {"forms", "jobs", "runs", "head", "nodes", "links", "faults", "events"} <= set(socket.parts)
        snapshot = two_nodes()
        view.sampler.snapshot = replace(snapshot, faults=())
        assert set(await socket.next_parts()) == {"faults", "head"}


@run_in_event_loop
async def test_a_page_is_sent_the_table_and_the_details_that_it_shows(tmp_path: Path) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        await socket.message()
        await socket.until("picture")
        socket.send({"show": {"panel": "Links", "kind": "node", "name": "n1"}})
        await socket.until("panel")
        assert socket.parts["panel"]["name"] == "Links"
        assert socket.parts["details"]["name"] == "n1"


@run_in_event_loop
async def test_pages_do_not_see_each_others_selection(tmp_path: Path) -> None:
    async with (
        running_view(tmp_path) as view,
        connected(view.app, SOCKET, PAGE_HEADERS) as first,
        connected(view.app, SOCKET, PAGE_HEADERS) as second,
    ):
        for socket, panel in ((first, "Links"), (second, "Faults")):
            await socket.message()
            await socket.until("picture")
            socket.send({"show": {"panel": panel}})
        for socket, panel in ((first, "Links"), (second, "Faults")):
            await socket.until("panel")
            assert socket.parts["panel"]["name"] == panel


@run_in_event_loop
async def test_the_cluster_is_not_sampled_without_viewers(tmp_path: Path) -> None:
    async with running_view(tmp_path, interval=0.001) as view:
        async with connected(view.app, SOCKET, PAGE_HEADERS) as socket:
            await socket.message()
            await socket.until("picture")
            while len(view.sampler.agent_queries) < 5:
                await asyncio.sleep(0.001)  # the interval
        samples_before = len(view.sampler.agent_queries)
        for _ in range(20):
            await asyncio.sleep(0.001)  # twenty intervals
        assert len(view.sampler.agent_queries) <= samples_before + 1  # a sample may have been in progress


@run_in_event_loop
async def test_agents_of_nics_are_queried_while_a_page_shows_their_counters(tmp_path: Path) -> None:
    async with running_view(tmp_path, interval=60.0) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        await socket.message()
        await socket.until("picture")
        socket.send({"show": {"panel": "NICs"}})
        await socket.until("panel")
        while len(view.sampler.agent_queries) < 2:
            await asyncio.sleep(0.001)  # the sample follows at once, not after the interval
        assert view.sampler.agent_queries[0] is False
        assert view.sampler.agent_queries[-1] is True


@run_in_event_loop
async def test_a_page_shows_that_the_cluster_is_down_and_up_again(tmp_path: Path) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        await socket.message()
        await socket.until("picture")
        view.sampler.snapshot = Absent("pair has been taken down")
        await socket.until("absent")
        assert socket.parts["absent"] == "pair has been taken down"
        view.sampler.snapshot = two_nodes()
        await socket.until("absent")
        assert socket.parts["absent"] == ""


@run_in_event_loop
async def test_a_paused_page_keeps_its_snapshot_until_the_cluster_is_down(tmp_path: Path) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        await socket.message()
        await socket.until("picture")
        socket.send({"show": {"paused": True, "panel": "Nodes"}})
        await socket.until("panel")
        view.sampler.snapshot = replace(two_nodes(), faults=())
        agent_queries = len(view.sampler.agent_queries)
        while len(view.sampler.agent_queries) < agent_queries + 3:
            await asyncio.sleep(0.001)  # the interval
        socket.send({"show": {"paused": True, "panel": "Faults"}})
        await socket.until("panel")
        assert len(socket.parts["panel"]["rows"]) == len(socket.parts["faults"]) == 1
        view.sampler.snapshot = Absent("pair has been taken down")
        await socket.until("absent")
        view.sampler.snapshot = replace(two_nodes(), faults=())
        await socket.until("faults")
        assert socket.parts["faults"] == []


# Requests of a page


@pytest.mark.parametrize(
    "order",
    [
        "no JSON", "[]", "3", '{"show": 3}', '{"show": {"panel": 1}}', '{"stop": "1"}', '{"show": {"kind": "cluster"}}',
        {"command": "inject", "values": {"target": {}}}, {"command": 3}, {"show": {"panel": "Nodes", "sort": "1"}},
        "[" * 100_000,
    ],
    ids=lambda order: str(order)[:40],
)  # fmt: skip
@run_in_event_loop
async def test_an_unknown_message_from_a_page_closes_its_socket(tmp_path: Path, order: object) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        await socket.message()
        await socket.until("picture")
        socket.send(order)
        while (message := await socket.message())["type"] != "websocket.close":
            pass
        assert message["code"] == 1008
        assert message["reason"]
        assert view.view.jobs.to_json() == []


@pytest.mark.parametrize(
    ("command", "values", "message"),
    [
        ("down", {}, "no command 'down' is offered here"),
        ("exec", {"words": "sh"}, "no command 'exec' is offered here"),
        ("inject", {"name": "other", "target": "n1"}, "inject has no parameter 'name'"),
        ("partition", {"groups": "n1 'n2"}, "n1 'n2: No closing quotation"),
    ],
)
@run_in_event_loop
async def test_a_form_whose_command_fails_shows_the_reason(
    tmp_path: Path, command: str, values: dict[str, str], message: str
) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        await socket.message()
        await socket.until("picture")
        socket.send({"command": command, "values": values, "name": "mine"})
        await socket.until("jobs")
        (job,) = socket.parts["jobs"]
        assert (job["name"], job["state"], job["message"]) == ("mine", "failed", message)


@run_in_event_loop
async def test_without_a_cluster_a_command_fails_with_the_reason(tmp_path: Path) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        view.sampler.snapshot = Absent("no cluster is up")
        await socket.message()
        await socket.until("absent")
        socket.send({"command": "heal", "values": {}})
        await socket.until("jobs")
        assert [job["message"] for job in socket.parts["jobs"]] == ["no cluster is up"]


@run_in_event_loop
async def test_only_the_last_jobs_are_kept(tmp_path: Path) -> None:
    jobs = ViewUnderTest(tmp_path).view.jobs
    for number in range(30):
        jobs.refuse(f"job {number}", "", "")
    jobs_document = jobs.to_json()
    assert isinstance(jobs_document, list)
    assert [job["number"] for job in jobs_document if isinstance(job, dict)] == list(range(30, 10, -1))


@run_in_event_loop
async def test_a_command_runs_as_on_the_command_line_and_returns_its_message(tmp_path: Path) -> None:
    async with running_view(tmp_path, interval=60.0) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        view.sampler.snapshot = replace(two_nodes(), cluster="no-such-cluster")
        await socket.message()
        await socket.until("picture")
        socket.send({"command": "inject", "values": {"target": "n1", "loss": "5%"}, "name": "mine"})
        while not socket.parts["jobs"] or socket.parts["jobs"][0]["state"] in ("waiting", "running"):
            await socket.until("jobs")
        (job,) = socket.parts["jobs"]
        assert job["command"] == "testbed inject --name no-such-cluster --loss=5% -- n1"
        assert (job["name"], job["state"]) == ("mine", "failed")
        assert job["message"].startswith("no cluster is named no-such-cluster")
        while len(view.sampler.agent_queries) < 2:
            await asyncio.sleep(0.001)  # the cluster is sampled again after the command


@run_in_event_loop
async def test_commands_that_change_the_cluster_run_in_sequence(tmp_path: Path) -> None:
    async with running_view(tmp_path, interval=60.0) as view:
        states: list[list[str]] = []
        for _ in range(2):
            view.view.jobs.start(["heal", "--name", "no-such-cluster"])
        await asyncio.sleep(0)  # both have begun

        def sample() -> list[str]:
            jobs = view.view.jobs.to_json()
            assert isinstance(jobs, list)
            return [str(job["state"]) for job in jobs if isinstance(job, dict)]

        while not states or "waiting" in states[-1] or "running" in states[-1]:
            states.append(sample())
            await asyncio.sleep(0.005)  # they run for some hundred milliseconds
        assert states[-1] == ["failed", "failed"]
        assert ["running", "running"] not in states


@run_in_event_loop
async def test_a_lone_surrogate_in_a_warning_is_sent(tmp_path: Path) -> None:
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        view.sampler.snapshot = replace(two_nodes(), warning="\ud800")
        await socket.message()
        await socket.until("head")
        assert socket.parts["head"]["warning"] == "\ud800"


@run_in_event_loop
async def test_markup_in_events_is_sent_as_text(tmp_path: Path) -> None:
    """The page inserts text only, so that JSON contains markup unchanged."""
    hostile_event = FormattedEvent(0, "<script>alert(1)</script>", "</script>", "<img src=x onerror=alert(1)>")
    async with running_view(tmp_path) as view, connected(view.app, SOCKET, PAGE_HEADERS) as socket:
        view.sampler.snapshot = replace(two_nodes(), events=(hostile_event,))
        await socket.message()
        await socket.until("events")
        assert socket.parts["events"][0]["cells"][1:] == ["<script>alert(1)</script>", "</script>", hostile_event.what]


def test_the_pages_scripts_insert_text_only_as_text() -> None:
    for file in STATIC.glob("*.js"):
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "setHTML"):
            assert word not in file.read_text(), file.name


def test_the_page_loads_nothing_from_other_hosts() -> None:
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file.name
        assert "url(" not in text, file.name
