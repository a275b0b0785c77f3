"""The loader: a pure function from (plan, step, rank) to a batch, with a position that can be saved.

There is no index to build, no shared memory, no barrier and no process group: a rank computes which rows are
its own from the plan and reads them. See docs/loader.md.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.packing.activity import activity_of
from gristmill.packing.batch import Batch, BatchOptions, Filler, Pool
from gristmill.packing.cache import Cache
from gristmill.packing.certificate import Certificate
from gristmill.packing.errors import ArgumentError, StarvedError, problem
from gristmill.packing.lengths import Change
from gristmill.packing.order import Shuffle, Skips
from gristmill.packing.plan import MAX_POSITIONS, Paths, Plan, make_plan
from gristmill.packing.prefetch import Prefetcher
from gristmill.packing.skipfile import read_skip_file
from gristmill.packing.state import STATE_MAGIC, STATE_VERSION, adopt, changed, check_format
from gristmill.packing.steps import Steps
from gristmill.packing.tombstones import Tombstones

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepMetrics:
    """What one `next()` cost: step number, seconds waited, batches ready afterwards.

    `rows` were delivered to this rank, and `restarts` crashed prefetch workers were started again since the last step.
    """

    step: int
    seconds: float
    ready: int
    rows: int = 0
    restarts: int = 0


class Loader(Steps):
    """Iterates this rank's batches of a run. Iteration continues from the current position.

    A batch is a dict: `input_ids`, `labels`, `position_ids` [rows, S]; `cu_seqlens` int32 [segments + 1] over
    the flattened batch, from 0 to rows * S; `max_seqlen` int; `samples` int64 [rows], the global sample
    numbers (-1: a blank row after the end, all of whose labels are -100). Where a curriculum cuts rows to S / d,
    there are d times as many, and d neighbours have the same sample number.
    """

    def __init__(
        self,
        sources: Paths | Mapping[str, Paths],
        *,
        sequence_length: int,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        weights: Mapping[str, float] | None = None,
        epochs: float | Mapping[str, float] | None = None,
        pack: str = "concat",
        shuffle: Shuffle | str = "full",
        balance: bool = False,
        curriculum: Sequence[Change | tuple[int, Mapping[str, float]]] = (),
        skip: str | os.PathLike[str] | Sequence[tuple[int, int]] = (),
        tombstones: Sequence[str] = (),
        drop_last: bool = False,
        dtype: Any = np.int32,
        loss_mask: bool = False,
        document_ids: bool = False,
        boundary_targets: bool = True,
        certify_content: bool = False,
        prefetch: int = 2,
        threads: int = 1,
        timeout: float | None = None,
        on_starved: Callable[[StarvedError], None] | None = None,
        tries: int = 3,
        verify: str = "first",
        retries: int = 4,
        plan_cache: str | os.PathLike[str] | None = None,
        cache: Cache | None = None,
        on_step: Callable[[StepMetrics], None] | None = None,
        pool: Pool | None = None,
    ) -> None:
        """Plan the run; opens `shards.json` files and nothing else.

        Args:
            sources: one shard folder, a list of them (one stream), or a mapping from source name to either.
            sequence_length: inputs a row, S; the longest where a curriculum changes it.
            batch_size: rows this rank delivers a step; the global batch is `batch_size * world_size`.
            global_batch_size: instead of `batch_size`: rows all ranks together deliver a step, split as
                evenly as they go, so that a change of `world_size` leaves every step's content the same.
            seed: chooses the order.
            rank: this rank, in [0, world_size).
            world_size: number of data-parallel ranks.
            weights: share of the rows by source name; without it every row of every source is delivered
                exactly once an epoch.
            epochs: passes over the data (1 without weights, endless with; `math.inf` for endless); a mapping
                caps sources one by one, and the weight of a used-up source goes to the others.
            pack: "concat", "best_fit" or "document".
            shuffle: "full", "none" or a `Shuffle`.
            balance: let steps, and the ranks of a step, cost about the same attention (sums of document length
                squared), for "best_fit" and "document"; see balance.py.
            curriculum: `Change`s: from that global sample on, draw by other weights, or cut each row into shorter
                ones; (sample, weights) pairs will do for weights.
            skip: half-open windows of global samples that are never delivered, or a skip file (skipfile.py).
            tombstones: ids of documents whose tokens are blanked wherever they come up.
            drop_last: drop the incomplete last step instead of filling it with blank rows.
            dtype: of ids, labels and positions; labels hold -100, so it must be signed.
            loss_mask: add `loss_mask` uint8 [rows, S], 0 where the label is -100.
            document_ids: add `document_ids` int64 [segments, 2]: for each segment of `cu_seqlens` the number of its
                source and of its document there, which `document` looks up; -1 for padding.
            boundary_targets: False sets the label of each document's last token to -100.
            certify_content: let `certificate` cover the token ids too, not only which rows were delivered.
            prefetch: steps prepared ahead by background threads; 0 works in the caller's thread.
            threads: number of background threads.
            timeout: seconds after which a missing batch raises `StarvedError`, which says what each worker waits for.
            on_starved: called with that error instead, after every `timeout` seconds; the wait goes on.
            tries: how often a batch is computed in all if prefetch workers crash at it, before `WorkerError`.
            verify: "first", "always" or "never": when block checksums are looked at.
            retries: of a failing read, with doubling pauses.
            plan_cache: folder where "best_fit" and "document" plans are kept from one start to the next.
            cache: local cache for remote shards (`s3://`, `http://`, `https://`).
            on_step: called after each step with its `StepMetrics`.
            pool: where arrays come from; the torch face brings one with pinned memory.

        Raises:
            ArgumentError, ShardMissingError, ShardFormatError: see the messages.
        """
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "pool")}
        if (batch_size is None) == (global_batch_size is None):
            raise ArgumentError(
                problem(
                    "give one of batch_size and global_batch_size",
                    where="Loader",
                    expected="exactly one",
                    got=(batch_size, global_batch_size),
                )
            )
        if not 0 <= rank < world_size:
            raise ArgumentError(
                problem("rank outside the world", where="Loader", expected=f"[0, {world_size})", got=rank)
            )
        self.global_batch_size = global_batch_size or (batch_size or 0) * world_size
        if self.global_batch_size < world_size:
            raise ArgumentError(
                problem(
                    "fewer rows than ranks",
                    where="Loader",
                    expected=f"at least {world_size}",
                    got=self.global_batch_size,
                )
            )
        if self.global_batch_size > MAX_POSITIONS:
            raise ArgumentError(
                problem(
                    "impossible number of rows a step",
                    where="Loader",
                    expected=f"at most {MAX_POSITIONS:,}",
                    got=self.global_batch_size,
                )
            )
        self.rank, self.world_size = rank, world_size
        self.plan: Plan = make_plan(
            sources,
            sequence_length=sequence_length,
            seed=seed,
            weights=weights,
            epochs=epochs,
            pack=pack,
            shuffle=shuffle,
            curriculum=curriculum,
            verify=verify,
            retries=retries,
            plan_cache=plan_cache,
            cache=cache,
            balance=balance,
        )
        rows = -(-self.global_batch_size // world_size)
        if rows * sequence_length > MAX_POSITIONS:
            raise ArgumentError(
                problem(
                    "a batch has more positions than int32 counts",
                    where="Loader",
                    expected=f"rows a rank times sequence_length of at most {MAX_POSITIONS:,}",
                    got=f"{rows:,} times {sequence_length:,}",
                )
            )
        if cache is not None:
            cache.next_use = self._next_use
        if isinstance(skip, (str, os.PathLike)):
            skip, withdrawn = read_skip_file(skip)
            tombstones = [*tombstones, *withdrawn]
        self._balance = balance
        self._skips = Skips(skip)
        self._given_skips = self._skips.windows
        self._drop_last = drop_last
        self._options = BatchOptions(np.dtype(dtype), loss_mask, boundary_targets)
        self._pool = pool or Pool()
        self._tombstones = Tombstones([source.shards for source in self.plan.sources], tombstones)
        self.filler = Filler(self.plan, self._options, self._pool, self._tombstones)
        self._certify_content = certify_content
        self._document_ids = document_ids
        self._certificate = Certificate()
        self._prefetch, self._threads, self._timeout = prefetch, threads, timeout
        self._on_starved, self._tries = on_starved, tries
        self._makers: dict[int, int] = {}
        self._on_step = on_step
        self._worker: tuple[int, int, int] | None = None
        self._runner: Prefetcher | None = None
        self._runner_pid = 0
        self._restarts = 0
        self._ahead: list[tuple[Batch, Certificate]] = []
        self._lock, self._pid = threading.Lock(), os.getpid()
        g = self.global_batch_size
        self._low, self._high = g * rank // world_size, g * (rank + 1) // world_size
        self._set_shape()
        self._move(0, 0)

    @property
    def step(self) -> int:
        """Steps delivered since the run began, over all resumes."""
        return self._step

    @property
    def delivered(self) -> int:
        """Rows delivered to all ranks together since the run began."""
        done = self._base + self._made * self.global_batch_size
        total = self.n_rows
        return done if total is None else min(done, total)

    @property
    def n_rows(self) -> int | None:
        """Rows of the whole run, without skipped ones; None if it never ends."""
        return self._n_rows

    def __len__(self) -> int:
        """Steps from the current position to the end.

        Raises:
            TypeError: the run never ends.
        """
        left = self._steps_left()
        if left is None:
            raise TypeError("this loader never ends: give epochs= or count steps yourself")
        return left

    # ---- iteration -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        if self._last is not None and self._made >= self._last:
            raise StopIteration
        if self._prefetch:
            if self._runner is None or self._runner_pid != os.getpid():
                self._renew_locks()
                self._start()
            batch: Batch
            batch, mark = self._take()
        else:
            batch, mark = self._next_made()
        self._certificate += mark
        self._made += 1
        self._step += 1
        if self._on_step is not None:
            ready = self._runner.ready if self._runner else 0
            restarts = self._runner.restarts if self._runner else 0
            self._on_step(
                StepMetrics(
                    self._step - 1,
                    time.perf_counter() - began,
                    ready,
                    self._high - self._low,
                    restarts - self._restarts,
                )
            )
            self._restarts = restarts
        return batch

    def _take(self) -> tuple[Batch, Certificate]:
        """Return the next prefetched batch; report, or raise, if it does not come in time."""
        while True:
            try:
                made: tuple[Batch, Certificate] = self._runner.take(self._timeout)  # type: ignore[union-attr]
                return made
            except StarvedError as error:
                if self._on_starved is None:
                    raise
                self._on_starved(error)

    def interleaved(self, worker: int, n_workers: int) -> Iterator[Batch]:
        """Yield steps worker, worker + n_workers, .. from the current position, in the caller's thread.

        For processes that take turns, such as the workers of a torch DataLoader. The position then counts
        this worker's own steps, and a state taken here is for the same worker of as many.
        """
        self._renew_locks()
        if self._worker is None or self._worker[:2] != (worker, n_workers):
            self._worker = (worker, n_workers, self._made + worker)
        left = self._steps_left()
        stop = None if left is None else self._made + left
        while stop is None or self._worker[2] < stop:
            ((batch, _),) = self._make(self._worker[2], 1)
            self._worker = (worker, n_workers, self._worker[2] + n_workers)
            yield batch

    def close(self) -> None:
        """Stop the background threads; the loader can still be used."""
        runner, self._runner = self._runner, None
        if runner is not None and self._runner_pid == os.getpid():
            runner.close()

    def __reduce__(self) -> Any:
        """Pickle as arguments and position: what a spawned worker process gets; callbacks stay behind."""
        return _rebuild, (type(self), {**self._arguments, "on_step": None, "on_starved": None}, self.state_dict())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not `close`: a thread that ends while its loader is collected as part of a cycle cannot be waited for.
        runner = getattr(self, "_runner", None)
        if runner is not None and self._runner_pid == os.getpid():
            runner.stop()

    # ---- position --------------------------------------------------------------------------------------

    def state_dict(self, after_steps: int = 0) -> dict[str, Any]:
        """Return the position as a small JSON-able dict; the same on every rank.

        Args:
            after_steps: that many steps further; for batches that DataLoader workers delivered, which the
                main process has counted and this object has not.
        """
        delivered = self.delivered + after_steps * self.global_batch_size
        state: dict[str, Any] = {
            "magic": STATE_MAGIC,
            "version": STATE_VERSION,
            "plan": {"hash": self.plan.hash, **self.plan.facts},
            "delivered": delivered if self.n_rows is None else min(delivered, self.n_rows),
            "step": self._step + after_steps,
            "changes": [[start, dict(weights)] for start, weights in self.plan.order.changes],
            "lengths": [list(change) for change in self.plan.lengths.changes],
            "skip": [list(window) for window in self._skips.windows],
            "tombstones": list(self._tombstones.documents),
        }
        if self._worker is not None:
            state["worker"] = list(self._worker)
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, weights: Mapping[str, float] | None = None) -> None:
        """Continue where `state` was taken, on any rank count, batch size or number of workers.

        A run with weights may have gained sources, or lost such as it no longer draws from, and `epochs` may be
        other than they were as far as that does not change the past. Skip windows and tombstones that this loader
        was made with are added to those of the state, windows as far as they lie ahead.

        Args:
            state: from `state_dict` of any rank.
            weights: draw by these from here on, as `set_weights`.

        Raises:
            StateError: the state is of another format version, plan or tokenizer; says which fact differs.
        """
        check_format(state)
        saved = Skips([(int(a), int(b)) for a, b in state["skip"]])
        now = int(saved.sample(int(state["delivered"])))
        plan = adopt(self.plan, state, now, weights)
        shards = [source.shards for source in plan.sources]
        withdrawn = (*state["tombstones"], *self._tombstones.documents)
        tombstones = Tombstones(shards, withdrawn, known=state["tombstones"])
        self.close()
        self._tombstones = tombstones
        self._use(plan)
        self._skips = saved.with_later(self._given_skips, now)
        self._certificate = Certificate()
        self._move(int(state["delivered"]), int(state["step"]))
        if "worker" in state:
            worker, n_workers, after = (int(value) for value in state["worker"])
            self._worker = (worker, n_workers, after)

    def seek(self, step: int) -> None:
        """Go to where `step` steps of this loader's global batch size end."""
        self.close()
        self._certificate = Certificate()
        self._move(step * self.global_batch_size, step)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Draw by these weights from the next step on; nothing is repeated and nothing lost.

        Changes of weights that a curriculum has for later are dropped.

        Raises:
            ArgumentError: the loader was made without weights, or a name is unknown.
        """
        if not self.plan.order.mixed:
            raise ArgumentError(
                problem("no mixture to change", where="set_weights", expected="a loader with weights=", got=None)
            )
        order, now = self.plan.order, int(self._skips.sample(self.delivered))
        self.close()
        self._use(self.plan.with_changes(changed(order.changes, now, weights), self.plan.lengths))
        self._move(self.delivered, self._step)

    def set_sequence_length(self, sequence_length: int) -> None:
        """Cut rows to this length from the next step on; changes that a curriculum has for later are dropped.

        Raises:
            ArgumentError: it does not divide the length that the loader was made with.
        """
        lengths = self.plan.lengths.with_change(int(self._skips.sample(self.delivered)), sequence_length)
        self.close()
        self._use(self.plan.with_changes(self.plan.order.changes, lengths))
        self._move(self.delivered, self._step)

    def skip(self, windows: Sequence[tuple[int, int]]) -> None:
        """Never deliver these half-open windows of global samples; what is already delivered stays as it was."""
        delivered = self.delivered
        self.close()
        self._skips = self._skips.with_later(windows, int(self._skips.sample(delivered)))
        self._move(delivered, self._step)

    # ---- questions -------------------------------------------------------------------------------------

    def certificate(self) -> Certificate:
        """Return the certificate of the rows delivered since this object was made, loaded or sought."""
        return self._certificate

    # ---- inside ----------------------------------------------------------------------------------------

    def _use(self, plan: Plan) -> None:
        self.plan = plan
        self.filler = Filler(plan, self._options, self._pool, self._tombstones)

    def _move(self, delivered: int, step: int) -> None:
        """Go to a position; everything that depends on plan, skips or position is computed anew."""
        self._base, self._made, self._step = delivered, 0, step
        self._chunks.clear()
        self._ahead.clear()
        self._worker = None
        total = self.plan.order.n_samples
        self._n_rows = None if total is None else self._skips.logical(total)
        self._last: int | None = None
        if self._n_rows is not None:
            left, g = max(self._n_rows - delivered, 0), self.global_batch_size
            self._last = left // g if self._drop_last else -(-left // g)

    def _steps_left(self) -> int | None:
        return None if self._last is None else max(self._last - self._made, 0)

    def _start(self) -> None:
        left = self._steps_left()
        me = weakref.ref(self)

        def make(made: int, n: int) -> list[tuple[Batch, Certificate] | None]:
            # The threads do not keep a loader alive that its owner has dropped.
            loader = me()
            return [None] * n if loader is None else [*loader._work(made, n)]

        def stage_of(made: int) -> str:
            loader = me()
            return "nothing" if loader is None else loader._stage_of(made)

        def then(made: int) -> None:
            loader = me()
            if loader is not None:
                loader._look_ahead(made)

        self._runner = Prefetcher(
            make,
            self._made,
            None if left is None else self._made + left,
            depth=self._prefetch,
            threads=max(1, min(self._threads, self._prefetch)),
            tries=max(1, self._tries),
            at_once=self._at_once,
            stage_of=stage_of,
            then=then,
        )
        self._runner_pid = os.getpid()
        self._restarts = 0

    def _work(self, made: int, n: int) -> list[tuple[Batch, Certificate]]:
        """Make steps in a prefetch worker, and note who does it."""
        steps = range(made, made + n)
        self._makers.update(dict.fromkeys(steps, threading.get_ident()))
        try:
            return self._make(made, n)
        finally:
            for step in steps:
                self._makers.pop(step, None)

    def _stage_of(self, made: int) -> str:
        """Say what the worker that makes a step is waiting for: stage of the work, shard and offset."""
        noted = activity_of(self._makers.get(made, -1))
        if noted is not None:
            return noted
        if self._place(made)[0] not in self._chunks:
            return "working out the order"
        samples = self._samples(made, 1)
        real = samples[samples >= 0]
        return (
            f"reading {len(real):,} rows, the first from {self.plan.place_of(int(real[0]))}" if len(real) else "filling"
        )

    def _next_made(self) -> tuple[Batch, Certificate]:
        """Return the next step, made in this thread with some after it; what fails there is left to its turn."""
        if not self._ahead:
            n = self._at_once if self._made >= self._head_steps else 1
            n = n if self._last is None else min(n, self._last - self._made)
            try:
                self._ahead = self._make(self._made, n)[::-1]
            except Exception:
                if n == 1:
                    raise
                self._ahead = self._make(self._made, 1)
        return self._ahead.pop()


def _rebuild(cls: type[Loader], arguments: dict[str, Any], state: dict[str, Any]) -> Loader:
    loader = cls(**arguments)
    loader.load_state_dict(state)
    return loader
