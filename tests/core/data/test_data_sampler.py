"""The sampler is a pure function of seed and step: an epoch visits every record once and mixes few chunks at a time."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsinga.data import open_records
from dsinga.layers import Rows
from dsinga.reading.batch_reader import BatchReader, WorkerBatches
from dsinga.reading.sampler import MIXED_CHUNKS, Sampler

lengths = st.integers(1, 700)
batchsizes = st.integers(1, 90)
chunks = st.integers(1, 120)
few_steps = st.lists(st.integers(0, 200), min_size=1, max_size=9)
seeds = st.integers(0, 2**64 - 1)


def epochs(sampler: Sampler, count: int) -> np.ndarray:
    """Return the row numbers of the first ``count`` epochs, an epoch in each row."""
    steps = -(-count * sampler.length // sampler.batchsize)
    rows = np.concatenate([sampler.rows(step) for step in range(steps)])
    return rows[: count * sampler.length].reshape(count, sampler.length)


class TestOrder:
    @given(length=lengths, batchsize=batchsizes, seed=seeds, chunk=chunks)
    def test_each_epoch_visits_every_record_once(self, length: int, batchsize: int, seed: int, chunk: int) -> None:
        for epoch in epochs(Sampler(length, batchsize, seed, chunk), 3):
            np.testing.assert_array_equal(np.sort(epoch), np.arange(length))

    @given(rows=st.lists(st.integers(1, 90), min_size=1, max_size=20), batchsize=batchsizes, seed=seeds)
    def test_chunks_may_have_unequal_rows(self, rows: list[int], batchsize: int, seed: int) -> None:
        ends = tuple(np.cumsum(rows).tolist())
        for epoch in epochs(Sampler(ends[-1], batchsize, seed, ends), 2):
            np.testing.assert_array_equal(np.sort(epoch), np.arange(ends[-1]))
            few = np.searchsorted(ends, epoch[: min(rows)], side="right")
            assert len(set(few.tolist())) <= MIXED_CHUNKS + 1

    @given(length=lengths, batchsize=batchsizes, seed=seeds, chunk=chunks)
    def test_ends_of_equal_chunks_give_their_batches(self, length: int, batchsize: int, seed: int, chunk: int) -> None:
        ends = (*range(chunk, length, chunk), length)
        for step in range(3):
            expected, rows = (Sampler(length, batchsize, seed, chunks).rows(step) for chunks in (chunk, ends))
            np.testing.assert_array_equal(np.sort(rows), np.sort(expected))

    def test_each_half_of_a_batch_has_rows_of_few_chunks(self) -> None:
        """So that each of two workers decodes half of the chunks, and those at the border."""
        ends = tuple(range(100, 6401, 100))
        sampler = Sampler(6400, 80, 0, ends)
        for half in ((0, 40), (40, 80)):
            rows = [sampler.rows(step, *half) for step in range(80)]
            assert len(np.unique(np.concatenate(rows) // 100)) <= 64 * 6 / 8
            assert max(len(np.unique(each // 100)) for each in rows) <= 6

    @given(
        length=lengths, batchsize=batchsizes, chunk=chunks, steps=st.lists(st.integers(0, 200), min_size=1, max_size=9)
    )
    def test_a_step_has_the_same_rows_in_any_order_of_calls(self, length, batchsize, chunk, steps):
        in_order = {step: Sampler(length, batchsize, 3, chunk).rows(step) for step in sorted(steps)}
        sampler = pickle.loads(pickle.dumps(Sampler(length, batchsize, 3, chunk)))
        records, part = open_records(np.arange(length)), Rows(0, batchsize, batchsize)
        read = WorkerBatches(BatchReader({"data": records}, {}, sampler, (part,)), {"data": part})
        for step in (*steps, *steps[::-1]):
            rows = sampler.rows(step)
            np.testing.assert_array_equal(read(step)["data"].data, rows)
            assert rows.shape == (batchsize,)
            assert rows.dtype == np.int64
            np.testing.assert_array_equal(rows, in_order[step])

    @given(length=lengths, batchsize=batchsizes, chunk=chunks, shuffle=st.booleans(), data=st.data())
    def test_a_part_of_a_batch_has_the_rows_of_the_batch(self, length, batchsize, chunk, shuffle, data):
        sampler = Sampler(length, batchsize, 2, chunk, shuffle)
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, batchsize)] * 2)))
        rows = sampler.rows(3, start, stop)
        assert rows.dtype == np.int64
        np.testing.assert_array_equal(rows, sampler.rows(3)[start:stop])

    @given(length=lengths, batchsize=batchsizes, chunk=chunks, skip=st.integers(0, 2000), shuffle=st.booleans())
    def test_skip_leaves_out_the_first_records(self, length, batchsize, chunk, skip, shuffle):
        plain = np.concatenate(
            [Sampler(length, 1, 5, chunk, shuffle).rows(step) for step in range(skip, skip + batchsize)]
        )
        np.testing.assert_array_equal(Sampler(length, batchsize, 5, chunk, shuffle, skip).rows(0), plain)

    @given(length=lengths, batchsize=batchsizes, chunk=chunks, step=st.integers(0, 100))
    def test_unshuffled_it_is_the_order_of_the_store(self, length: int, batchsize: int, chunk: int, step: int) -> None:
        rows = Sampler(length, batchsize, 0, chunk, shuffle=False).rows(step)
        np.testing.assert_array_equal(rows, (step * batchsize + np.arange(batchsize)) % length)

    def test_the_caller_may_change_the_arrays(self) -> None:
        sampler = Sampler(100, 10, 1, 7)
        before = sampler.rows(2).copy()
        sampler.rows(2)[:] = 0
        np.testing.assert_array_equal(sampler.rows(2), before)

    def test_the_order_is_the_same_in_every_version(self) -> None:
        # A resumed run of any later version must continue with the same records.
        assert Sampler(1000, 8, 7, 64).rows(123).tolist() == [883, 681, 953, 639, 895, 869, 959, 577]


class TestMixing:
    def test_seeds_and_epochs_differ(self) -> None:
        first, second = epochs(Sampler(5000, 100, 1, 200), 2)
        (other_seed,) = epochs(Sampler(5000, 100, 2, 200), 1)
        for a, b in ((first, second), (first, other_seed)):
            assert (a == b).mean() < 0.01
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.1

    def test_every_record_may_come_at_any_time(self) -> None:
        positions = np.stack([np.argsort(epochs(Sampler(1000, 100, seed, 100), 1)[0]) for seed in range(200)])
        assert abs(positions.mean(axis=0) - 499.5).max() < 100  # uniform: deviation 289 / sqrt(200) = 20
        assert np.abs(positions.std(axis=0) - 288.7).max() < 60

    @given(seed=seeds)
    def test_a_batch_of_a_sorted_store_mixes_classes(self, seed: int) -> None:
        labels = np.repeat(np.arange(10), 5000)
        sampler = Sampler(len(labels), 64, seed, 341)
        classes = [len(set(labels[sampler.rows(step)])) for step in range(0, 700, 50)]
        assert np.mean(classes) > 4  # from one chunk it would be 1; from eight random ones 5.7 on average

    @given(length=st.integers(1, 3000), chunk=st.integers(1, 300), seed=seeds)
    def test_few_chunks_are_open_at_a_time(self, length: int, chunk: int, seed: int) -> None:
        (order,) = epochs(Sampler(length, 50, seed, chunk), 1)
        count = -(-length // chunk)
        for start in range(0, length, chunk):  # a stretch as long as a chunk touches at most two slots
            assert len(np.unique(order[start : start + chunk] // chunk)) <= min(count, MIXED_CHUNKS + 2)

    def test_each_chunk_is_read_within_one_stretch_of_the_epoch(self) -> None:
        chunk, count = 100, 50
        (order,) = epochs(Sampler(chunk * count, 50, 0, chunk), 1)
        spans = [np.ptp(np.flatnonzero(order // chunk == index)) for index in range(count)]
        assert np.median(spans) <= MIXED_CHUNKS * chunk
        assert (
            sum(span > MIXED_CHUNKS * chunk for span in spans) < MIXED_CHUNKS
        )  # chunks whose shares go to slots at both ends of the epoch
