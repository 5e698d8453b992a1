// One step of a recurrent cell, for n numbers of the new output at once, forward and backward: the formulas of numpy_cells.py.
//
// A row of `gates` has the gates of one row of the batch next to each other, `size` numbers each; they already hold the
// sums of the two products. A state is a row of `size` numbers, of an LSTM two such rows, h and then c. The outputs alone
// are factors of later products, and are also written as bfloat16 if `factor` is given; of the gradients of gates no other
// use is made.

#define STEP const REAL *before, REAL *now, STORED *factor, REAL *gates
#define STEP_GRAD const REAL *before, const REAL *now, const REAL *gates, const REAL *dy, REAL *d, STORED *dgates

// The number of an activation is the same for all threads of a launch.
enum { SIGMOID, TANH, RELU, IDENTITY };

__device__ inline REAL activate(Index function, REAL x) {
    switch (function) {
        case SIGMOID: return logistic(x);
        case TANH: return tanh(x);
        case RELU: return x < 0 ? 0 : x;  // NaN stays NaN
        default: return x;
    }
}

// The derivative at x, from y = f(x).
__device__ inline REAL slope(Index function, REAL y) {
    switch (function) {
        case SIGMOID: return (1 - y) * y;
        case TANH: return 1 - y * y;
        case RELU: return y > 0 ? 1 : 0;
        default: return 1;
    }
}

KERNEL rnn(STEP, Index size, Index n) {
    FOR_EACH(i, n) {
        now[i] = tanh(gates[i]);
        if (factor) factor[i] = now[i];
    }
}

KERNEL rnn_grad(STEP_GRAD, Index size, Index n) {
    FOR_EACH(i, n) {
        dgates[i] = (d[i] + dy[i]) * (1 - now[i] * now[i]);
        d[i] = 0;
    }
}

// The gates of a row are c, z, r, s: s is the product of the state for c.
KERNEL gru(STEP, Index gates_by, Index candidate_by, Index size, Index n) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        REAL* gate = gates + row * 4 * size + unit;
        const REAL z = activate(gates_by, gate[size]), r = activate(gates_by, gate[2 * size]);
        const REAL c = activate(candidate_by, gate[0] + r * gate[3 * size]);
        gate[0] = c;
        gate[size] = z;
        gate[2 * size] = r;
        now[i] = (before[i] - c) * z + c;
        if (factor) factor[i] = now[i];
    }
}

KERNEL gru_grad(STEP_GRAD, Index gates_by, Index candidate_by, Index size, Index n) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        const REAL* gate = gates + row * 4 * size + unit;
        STORED* dgate = dgates + row * 4 * size + unit;
        const REAL c = gate[0], z = gate[size], r = gate[2 * size], s = gate[3 * size];
        const REAL whole = d[i] + dy[i], dc = slope(candidate_by, c) * whole * (1 - z);
        dgate[0] = dc;
        dgate[size] = (before[i] - c) * whole * slope(gates_by, z);
        dgate[2 * size] = slope(gates_by, r) * dc * s;
        dgate[3 * size] = dc * r;
        d[i] = whole * z;
    }
}

// The gates of a row are i, f, g, o.
KERNEL lstm(STEP, Index gates_by, Index candidate_by, Index cell_by, Index size, Index n) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        REAL* gate = gates + row * 4 * size + unit;
        const Index h = row * 2 * size + unit, c = h + size;
        const REAL in = activate(gates_by, gate[0]), forget = activate(gates_by, gate[size]);
        const REAL out = activate(gates_by, gate[3 * size]), g = activate(candidate_by, gate[2 * size]);
        const REAL cell = forget * before[c] + in * g;
        gate[0] = in;
        gate[size] = forget;
        gate[2 * size] = g;
        gate[3 * size] = out;
        now[c] = cell;
        now[h] = out * activate(cell_by, cell);
        if (factor) factor[i] = now[h];
    }
}

KERNEL lstm_grad(STEP_GRAD, Index gates_by, Index candidate_by, Index cell_by, Index size, Index n) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        const REAL* gate = gates + row * 4 * size + unit;
        STORED* dgate = dgates + row * 4 * size + unit;
        const Index h = row * 2 * size + unit, c = h + size;
        const REAL in = gate[0], forget = gate[size], g = gate[2 * size], out = gate[3 * size];
        const REAL t = activate(cell_by, now[c]), dh = d[h] + dy[i], dc = d[c] + slope(cell_by, t) * out * dh;
        dgate[0] = slope(gates_by, in) * g * dc;
        dgate[size] = slope(gates_by, forget) * before[c] * dc;
        dgate[2 * size] = slope(candidate_by, g) * in * dc;
        dgate[3 * size] = slope(gates_by, out) * t * dh;
        d[c] = dc * forget;
        d[h] = 0;
    }
}

// Rows of n numbers by their places: packed[i] = x[places[i]], and back; all other rows of x are 0.
KERNEL pack(const REAL* x, const long long* places, STORED* packed, Index n, Index total) {
    FOR_EACH(i, total) packed[i] = x[places[i / n] * n + i % n];
}

KERNEL unpack(const REAL* packed, const long long* places, REAL* x, Index n, Index total) {
    FOR_EACH(i, total) x[places[i / n] * n + i % n] = packed[i];
}
