// One step of a recurrent cell, for n numbers of the new output at once, forward and backward: the formulas of numpy_cells.py.
//
// A row of `gates` has the gates of one row of the batch next to each other, `size` numbers each; they already hold the
// sums of the two products. A state is a row of `size` numbers, of an LSTM two such rows, h and then c.

#define STEP const REAL* before, REAL* now, REAL* gates, Index size, Index n
#define STEP_GRAD \
    const REAL* before, const REAL* now, const REAL* gates, const REAL* dy, REAL* d, REAL* dgates, Index size, Index n

KERNEL rnn(STEP) {
    FOR_EACH(i, n) now[i] = tanh(gates[i]);
}

KERNEL rnn_grad(STEP_GRAD) {
    FOR_EACH(i, n) {
        dgates[i] = (d[i] + dy[i]) * (1 - now[i] * now[i]);
        d[i] = 0;
    }
}

// The gates of a row are c, z, r, s: s is the product of the state for c.
KERNEL gru(STEP) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        REAL* gate = gates + row * 4 * size + unit;
        const REAL z = logistic(gate[size]), r = logistic(gate[2 * size]);
        const REAL c = tanh(gate[0] + r * gate[3 * size]);
        gate[0] = c;
        gate[size] = z;
        gate[2 * size] = r;
        now[i] = (before[i] - c) * z + c;
    }
}

KERNEL gru_grad(STEP_GRAD) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        const REAL* gate = gates + row * 4 * size + unit;
        REAL* dgate = dgates + row * 4 * size + unit;
        const REAL c = gate[0], z = gate[size], r = gate[2 * size], s = gate[3 * size];
        const REAL whole = d[i] + dy[i], rest = whole * (1 - z), dc = (1 - c * c) * rest;
        dgate[0] = dc;
        dgate[size] = (before[i] - c) * rest * z;
        dgate[2 * size] = (1 - r) * dc * r * s;
        dgate[3 * size] = dc * r;
        d[i] = whole * z;
    }
}

// The gates of a row are i, f, g, o.
KERNEL lstm(STEP) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        REAL* gate = gates + row * 4 * size + unit;
        const Index h = row * 2 * size + unit, c = h + size;
        const REAL in = logistic(gate[0]), forget = logistic(gate[size]), out = logistic(gate[3 * size]);
        const REAL g = tanh(gate[2 * size]), cell = forget * before[c] + in * g;
        gate[0] = in;
        gate[size] = forget;
        gate[2 * size] = g;
        gate[3 * size] = out;
        now[c] = cell;
        now[h] = out * tanh(cell);
    }
}

KERNEL lstm_grad(STEP_GRAD) {
    FOR_EACH(i, n) {
        const Index row = i / size, unit = i % size;
        const REAL* gate = gates + row * 4 * size + unit;
        REAL* dgate = dgates + row * 4 * size + unit;
        const Index h = row * 2 * size + unit, c = h + size;
        const REAL in = gate[0], forget = gate[size], g = gate[2 * size], out = gate[3 * size];
        const REAL t = tanh(now[c]), dh = d[h] + dy[i], dc = d[c] + (1 - t * t) * out * dh;
        dgate[0] = (1 - in) * in * g * dc;
        dgate[size] = (1 - forget) * forget * before[c] * dc;
        dgate[2 * size] = (1 - g * g) * in * dc;
        dgate[3 * size] = (1 - out) * out * t * dh;
        d[c] = dc * forget;
        d[h] = 0;
    }
}

// Rows of n numbers by their places: packed[i] = x[places[i]], and back; all other rows of x are 0.
KERNEL pack(const REAL* x, const long long* places, REAL* packed, Index n, Index total) {
    FOR_EACH(i, total) packed[i] = x[places[i / n] * n + i % n];
}

KERNEL unpack(const REAL* packed, const long long* places, REAL* x, Index n, Index total) {
    FOR_EACH(i, total) x[places[i / n] * n + i % n] = packed[i];
}
