// Characters and words, records and random numbers.

#define NOT_A_NUMBER __uint_as_float(0x7fffffffu)

// Zeros where a code is -1, NaN where it is none from 0 to size - 1.
KERNEL one_hot(const long long* codes, REAL* y, Index size, Index n) {
    FOR_EACH(i, n) {
        const long long code = codes[i / size];
        y[i] = code < -1 || code >= size ? (REAL)NOT_A_NUMBER : (REAL)(code == i % size);
    }
}

// The rows of a table with these codes, zeros where a code is -1, NaN where the table has no such row. Rows are c
// numbers long.
KERNEL embedding(const REAL* table, const long long* codes, REAL* y, Index rows, Index c, Index n) {
    FOR_EACH(i, n) {
        const long long code = codes[i / c];
        y[i] = code < -1 || code >= rows ? (REAL)NOT_A_NUMBER : code < 0 ? (REAL)0 : table[code * c + i % c];
    }
}

// Row s of y is the sum of the rows order[starts[s]] ... order[starts[s + 1] - 1] of x, in that order; one block a row.
KERNEL segment_sums(
    const REAL* x, const long long* order, const long long* starts, REAL* y, Index segments, Index codes, Index c
) {
    const Index first = starts[blockIdx.x], last = blockIdx.x + 1 < segments ? starts[blockIdx.x + 1] : codes;
    FOR_COLUMN(j, c) {
        REAL sum = 0;
        for (Index place = first; place < last; ++place) sum += x[order[place] * c + j];
        y[blockIdx.x * c + j] = sum;
    }
}

KERNEL bernoulli(const REAL* p, const float* uniform, REAL* y, Index n) {
    FOR_EACH(i, n) y[i] = uniform[i] < p[i];
}

KERNEL dropout_mask(const float* uniform, float* y, double ratio, double kept, Index n) {
    FOR_EACH(i, n) y[i] = uniform[i] >= (float)ratio ? (float)kept : 0.0f;
}

// The numbers of numpy.random.Philox (Philox4x64-10 of Salmon et al., 2011): `blocks` counters for each row, the first
// after (first·blocks, 0, step, 0), each of which gives 8 float32 in [0, 1), of which a row takes `columns`. The step is
// that of the step's block if there is one, else the number.
KERNEL philox(
    float* y, long long key0, long long key1, Index first, const Index* step_of_block, Index step, Index blocks,
    Index columns, Index n
) {
    typedef unsigned long long Word;
    if (step_of_block) step = *step_of_block;
    FOR_EACH(i, n) {
        const Index row = i / blocks, block = i % blocks;
        Word a = (Word)(first * blocks + i + 1), b = 0, c = (Word)step, d = 0, k0 = (Word)key0, k1 = (Word)key1;
        for (int round = 0; round < 10; ++round) {
            const Word m0 = 0xD2E7470EE14C6C93ull, m1 = 0xCA5A826395121157ull;
            const Word high0 = __umul64hi(m0, a), low0 = m0 * a, high1 = __umul64hi(m1, c), low1 = m1 * c;
            a = high1 ^ b ^ k0;
            b = low1;
            c = high0 ^ d ^ k1;
            d = low0;
            k0 += 0x9E3779B97F4A7C15ull;
            k1 += 0xBB67AE8584CAA73Bull;
        }
        const Word words[4] = {a, b, c, d};
        for (int j = 0; j < 8; ++j) {
            const unsigned half = (unsigned)(words[j / 2] >> (j % 2 ? 32 : 0));
            const Index column = block * 8 + j;
            if (column < columns) y[row * columns + column] = (half >> 8) * (1.0f / 16777216.0f);
        }
    }
}
