// CUDA's threads on a CPU, for tests: the blocks of a launch one after the other, the threads of a block as fibers that
// give way to each other where they wait. What runs is the text of the kernels, compiled as C++.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

using std::exp;
using std::log;
using std::pow;
using std::sqrt;
using std::tanh;

#define __global__
#define __device__
#define __shared__ static

struct Dim {
    unsigned x, y, z;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
inline void __threadfence() {}  // blocks run one after the other
inline int atomicAdd(int* place, int number) { const int before = *place; *place += number; return before; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline float __fadd_rn(float a, float b) { return a + b; }  // g++ contracts nothing for plain x86-64
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrt(a); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

enum State { READY, AT_BLOCK, AT_WARP, DONE };
struct Fiber {
    void* top;  // of its stack, while others run
    std::vector<char> stack;
    State state;
    double lane;
};
static std::vector<Fiber> fibers;
static void* scheduler;  // the top of its stack
static unsigned running;
static void (*body)(void**);
static void** given;

// Goes on elsewhere with what a function must keep. swapcontext, which any processor has, asks the kernel for the signals
// of each context: two thirds of the time.
extern "C" void switch_stacks(void** from, void* to);
asm(".text\n.type switch_stacks, @function\nswitch_stacks:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

static void wait_at(State state) {
    fibers[running].state = state;
    switch_stacks(&fibers[running].top, scheduler);
}
inline void __syncthreads() { wait_at(AT_BLOCK); }
template <typename T> T __shfl_xor_sync(unsigned, T value, int offset) {
    memcpy(&fibers[running].lane, &value, sizeof value);
    wait_at(AT_WARP);
    memcpy(&value, &fibers[running ^ offset].lane, sizeof value);
    wait_at(AT_WARP);
    return value;
}

static void run_fiber() {
    body(given);
    wait_at(DONE);
}

// Let all fibers of [first, last) go on if none of them is elsewhere; say whether there were any.
static bool release(unsigned first, unsigned last, State from) {
    bool any = false;
    for (unsigned i = first; i < last; ++i) {
        if (fibers[i].state == READY || (fibers[i].state != from && fibers[i].state != DONE)) return false;
        any |= fibers[i].state == from;
    }
    for (unsigned i = first; any && i < last; ++i)
        if (fibers[i].state == from) fibers[i].state = READY;
    return any;
}

// Run one block; false where its threads wait for each other at different places.
static bool run_block() {
    if (fibers.size() < blockDim.x) fibers.resize(blockDim.x);
    for (unsigned i = 0; i < blockDim.x; ++i) {
        Fiber& fiber = fibers[i];
        fiber.stack.resize(64 * 1024);
        void** end = (void**)((uintptr_t)(fiber.stack.data() + fiber.stack.size()) & ~(uintptr_t)15);
        end[-2] = (void*)run_fiber;  // where it returns to, below six registers
        fiber.top = end - 8;
        fiber.state = READY;
    }
    for (;;) {
        for (running = 0; running < blockDim.x; ++running)
            if (fibers[running].state == READY) {
                threadIdx = {running, 0, 0};
                switch_stacks(&scheduler, fibers[running].top);
            }
        bool goes_on = false;
        for (unsigned warp = 0; warp < blockDim.x; warp += 32) goes_on |= release(warp, min(warp + 32, blockDim.x), AT_WARP);
        goes_on = goes_on || release(0, blockDim.x, AT_BLOCK);
        if (!goes_on) break;
    }
    for (unsigned i = 0; i < blockDim.x; ++i)
        if (fibers[i].state != DONE) return false;
    return true;
}

template <typename... A, size_t... I> void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
}

// What Python gives as an argument, 8 bytes each: the kind of a number, or how long the numbers of an array are.
struct Kind {
    char kind;  // i, d, or p for an array
    int size;
};
template <typename A> bool takes(Kind given, const void* value) {
    static_assert(sizeof(A) == 8, "Python's numbers and pointers are 8 bytes long");
    if constexpr (std::is_pointer_v<A>) {
        if (given.kind == 'i') return *(const long long*)value == 0;  // a null pointer
        return given.kind == 'p' && given.size == (int)sizeof(std::remove_pointer_t<A>);
    } else
        return given.kind == (std::is_integral_v<A> ? 'i' : 'd');
}
template <typename... A, size_t... I> bool take_all(const Kind* kinds, void** arguments, std::index_sequence<I...>) {
    return (takes<A>(kinds[I], arguments[I]) && ...);
}

// Run a kernel; 0, or what is wrong: 1 the arguments, 2 threads that wait for each other at different places.
template <typename... A>
int launch(void (*)(A...), void (*wrapped)(void**), void** arguments, const Kind* kinds, int count, Dim grid, Dim block, int waits) {
    if (count != (int)sizeof...(A) || !take_all<A...>(kinds, arguments, std::index_sequence_for<A...>())) return 1;
    body = wrapped;
    given = arguments;
    gridDim = grid;
    blockDim = block;
    for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
            blockIdx = {x, y, 0};
            if (waits) {
                if (!run_block()) return 2;
                continue;
            }
            for (unsigned i = 0; i < block.x; ++i) {
                threadIdx = {i, 0, 0};
                body(given);
            }
        }
    return 0;
}

template <typename... A> void apply(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>());
}

#define EMULATE(name)                                                                                               \
    extern "C" int launch_##name(                                                                                 \
        void** arguments, const Kind* kinds, int count, unsigned gx, unsigned gy, unsigned bx, int waits               \
    ) {                                                                                                             \
        auto wrapped = [](void** given) { apply(&name, given); };                                                   \
        return launch(&name, wrapped, arguments, kinds, count, {gx, gy, 1}, {bx, 1, 1}, waits);                     \
    }
