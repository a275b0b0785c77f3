"""Prepares batches ahead of the consumer in threads; order and content do not depend on their number."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gristmill.packing.errors import PackingError, StarvedError, WorkerError, problem


@dataclass(frozen=True)
class Waiting:
    """What a worker was doing when asked: step, stage of the work and for how long, in seconds."""

    step: int
    stage: str
    seconds: float


class Prefetcher:
    """Runs `make(step, n)`, for n steps at a time from `first` on, in `threads` threads, at most `depth` steps ahead.

    If `make` raises at several steps, they are made one by one. What it raises at one, unless it is a `PackingError`,
    counts as a crash of the worker: the step is computed again, `tries` times in all; then the consumer gets a
    `WorkerError` in its turn: every earlier batch still arrives.
    """

    def __init__(
        self,
        make: Callable[[int, int], list[Any]],
        first: int,
        last: int | None,
        *,
        depth: int,
        threads: int,
        tries: int = 3,
        at_once: int = 1,
        stage_of: Callable[[int], str] | None = None,
        then: Callable[[int], None] | None = None,
    ) -> None:
        """Start the threads; `last` is one past the final step, None for endless; `at_once` bounds n.

        `then(step)` is called when a step is ready for the consumer, for work that can be done in advance; what it
        raises is dropped.
        """
        self._make = make
        self._first = first
        self._next_to_make = first
        self._next_to_take = first
        self._last = last
        self._depth = depth
        self._tries = tries
        self._at_once = max(1, at_once)
        self._then = then
        self._stage_of = stage_of or (lambda step: "filling")
        self._done: dict[int, tuple[Any, BaseException | None]] = {}
        self._working: dict[int, float] = {}
        self._stop = False
        # A worker takes several steps at a time where the depth allows: each hand-over costs as much as a tenth of a
        # batch. Whoever has nothing to wait for is not woken.
        self._span = max(1, depth // (2 * threads))
        self._lock = threading.RLock()
        self._ready, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._idle = 0
        self.restarts = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"gristmill-prefetch-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ready(self) -> int:
        """Batches that are finished and wait for the consumer."""
        return len(self._done)

    def take(self, timeout: float | None = None) -> Any:
        """Return the next batch in order.

        Raises:
            StarvedError: it did not arrive within `timeout` seconds; says which step is stuck where.
            Exception: whatever the worker could not get past.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        step = self._next_to_take
        with self._lock:
            while step not in self._done:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise StarvedError(self._starvation(step, timeout or 0.0))
                self._ready.wait(left)
            batch, error = self._done.pop(step)
            self._next_to_take += 1
            if self._idle and self._free() >= self._span:
                self._room.notify()
        if error is not None:
            raise error
        return batch

    def stop(self) -> None:
        """Tell the threads to stop; does not wait for them."""
        with self._lock:
            self._stop = True
            self._room.notify_all()

    def close(self) -> None:
        """Stop the threads and wait for them."""
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=30)

    def waiting(self) -> list[Waiting]:
        """Return what the workers are busy with."""
        now = time.monotonic()
        return [Waiting(step, self._stage_of(step), now - since) for step, since in sorted(self._working.items())]

    def _starvation(self, step: int, timeout: float) -> str:
        busy = [f"step {w.step:,} {w.stage} for {w.seconds:.1f} s" for w in self.waiting()]
        return problem(
            f"no batch within {timeout:g} s",
            where=f"loader at step {step:,}",
            expected="a batch",
            got="; ".join(busy) or "no worker is running",
            then="look at the named shard's disk or mount, or raise timeout",
        )

    def _stopped(self) -> bool:
        return self._stop

    def _free(self) -> int:
        """How many more steps may be begun; there is always room for the one that the consumer wants next."""
        ahead = self._next_to_make - self._next_to_take
        return max(self._depth - ahead, 0 if ahead else 1)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._stop and self._free() < self._span:
                    self._idle += 1
                    self._room.wait()
                    self._idle -= 1
                first = self._next_to_make
                # The consumer is waiting for the first one: it is not made to wait for more.
                last = first + (self._span if first != self._first else 1)
                last = last if self._last is None else min(last, self._last)
                if self._stop or first >= last:
                    return
                self._next_to_make = last
            for begin in range(first, last, self._at_once):
                if self._stopped():
                    return
                self._prepare(begin, min(begin + self._at_once, last))

    def _prepare(self, first: int, last: int) -> None:
        """Make steps [first, last) and put them where the consumer finds them."""
        self._working.update(dict.fromkeys(range(first, last), time.monotonic()))
        several = self._try_at_once(first, last - first) if last - first > 1 else []
        for step in range(first, last):
            result = (several[step - first], None) if several else self._attempt(step)
            with self._lock:
                del self._working[step]
                self._done[step] = result
                if step == self._next_to_take:
                    self._ready.notify()
            del result
            if self._then is not None:
                with contextlib.suppress(Exception):
                    self._then(step)

    def _try_at_once(self, first: int, n: int) -> list[Any]:
        """Return what is made of `n` steps, or nothing if that fails: then each fails, or does not, in its turn."""
        try:
            return self._make(first, n)
        except BaseException:
            return []

    def _attempt(self, step: int) -> tuple[Any, BaseException | None]:
        for left in reversed(range(self._tries)):
            try:
                return self._make(step, 1)[0], None
            except PackingError as error:
                return None, error
            except BaseException as error:  # whatever ends it: the consumer must not wait for ever
                if not left:
                    failed = WorkerError(
                        problem(
                            f"a prefetch worker crashed {self._tries} times",
                            where=f"loader at step {step:,}",
                            expected="a batch",
                            got=f"{type(error).__name__}: {error}",
                            then="the crash is below, as the cause",
                        )
                    )
                    failed.__cause__ = error
                    return None, failed
                with self._lock:
                    self.restarts += 1
        raise RuntimeError("unreachable")
