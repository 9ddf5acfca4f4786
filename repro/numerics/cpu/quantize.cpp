// Fused quantiser of one GEMM operand on the CPU (arXiv 2509.25149, section 2, 4 and Appendix B):
// read, Hadamard transform, amax, block scales, rounding and writing in one pass over cache-sized panels, after a
// first pass for the tensor's amax where the format has a tensor scale.
//
// Does not: allocate results, know PyTorch, or define anything: repro/numerics/operand.py is the definition and the
// tests compare the two to the bit. A tensor that holds Inf or NaN is reported (NON_FINITE) and left to that
// reference. FP32 arithmetic throughout; must be compiled without fast-math and with -ffp-contract=off.
#include <memory>

#include "hadamard.hpp"
#include "panel.hpp"
#include "philox.hpp"

namespace repro {

enum Storage : int32_t { STORES_FP32 = 0, STORES_BF16 = 1 };
enum ElementKind : int32_t { IS_E2M1 = 0, IS_E4M3 = 1 };
enum Status : int32_t { DONE = 0, NON_FINITE = 1, UNSUPPORTED = 2 };

// One call; repro/numerics/cpu/binding.py mirrors it field by field.
struct Request {
    const void* x;        // [rows, columns], columns contiguous, rows row_stride apart
    void* out;            // [rows, columns], contiguous
    float* amax;          // of what is quantised (after the transform)
    float* gemm_scale;    // the FP32 tensor scale; written for two-level rules only
    const float* signs;   // [hadamard] of +-1, or null
    int64_t rows, columns, row_stride;
    uint64_t seed;        // of the stochastic rounding
    int32_t x_storage, out_storage;
    int32_t tile_rows, tile_columns;  // in the tensor's own layout
    int32_t hadamard, along;          // 0 = no transform; along = 0 down the rows, 1 along the columns
    int32_t element, scale_rule;
    float scale_max;       // largest number of the scale's format, for two-level rules
    int32_t stochastic;
    int32_t dequantises;   // 1: out = the represented values; 0: code value x block scale
    int32_t threads;
};

constexpr int64_t PANEL_VALUES = 4096;         // 16 KiB of FP32
constexpr int64_t LEAST_PANEL_WIDTH = 256;     // shorter pieces of rows waste memory bandwidth
constexpr int64_t AMAX_RUN_VALUES = 1 << 16;   // of one task of the plain amax pass
constexpr int64_t VALUES_PER_THREAD = 1 << 15; // fewer are not worth another thread
constexpr int64_t KEPT_VALUES = 1 << 18;       // up to 1 MiB of results stay in the cache between the two passes

// Panels of a tensor: whole tiles and Hadamard groups, about PANEL_VALUES values each.
struct Panels {
    int64_t rows, width, down, across;

    explicit Panels(const Request& q) {
        const int64_t unit_rows = std::max(q.tile_rows, q.along == 0 ? q.hadamard : 1);
        const int64_t unit_columns = std::max({(int64_t)q.tile_columns, (int64_t)(q.along == 1 ? q.hadamard : 1),
                                               (int64_t)LANES});
        const auto whole = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; };
        width = std::max(PANEL_VALUES / unit_rows / unit_columns * unit_columns,
                         whole(LEAST_PANEL_WIDTH, unit_columns));
        width = std::min(width, whole(q.columns, unit_columns));
        rows = std::max(PANEL_VALUES / width / unit_rows * unit_rows, unit_rows);
        rows = std::min(rows, whole(q.rows, unit_rows));
        down = (q.rows + rows - 1) / rows;
        across = (q.columns + width - 1) / width;
    }
    int64_t count() const { return down * across; }
};

// The part of the tensor that panel number i covers.
struct Window : Extent {
    int64_t top, left;

    Window(const Request& q, const Panels& p, int64_t i) : top(i / p.across * p.rows), left(i % p.across * p.width) {
        rows = std::min(p.rows, q.rows - top);
        columns = std::min(p.width, q.columns - left);
    }
};

// Buffers of one thread, kept between calls.
class Workspace {
  public:
    float *panel, *encode, *decode;
    int32_t* amaxes;
    uint8_t* random;

    void reserve(const Request& q, const Panels& p) {
        const int64_t values = p.rows * p.width;
        const int64_t blocks = values / q.tile_rows / q.tile_columns + 2 * LANES;  // read in whole vectors
        const int64_t bytes = values * 5 + blocks * 12 + 5 * 64;
        if (bytes > capacity_) {
            memory_.reset(new uint8_t[bytes + 64]);
            capacity_ = bytes;
        }
        uint8_t* at = (uint8_t*)(((uintptr_t)memory_.get() + 63) / 64 * 64);
        const auto take = [&at](int64_t n) {
            uint8_t* begin = at;
            at += (n + 63) / 64 * 64;
            return begin;
        };
        panel = (float*)take(values * 4);
        amaxes = (int32_t*)take(blocks * 4);
        encode = (float*)take(blocks * 4);
        decode = (float*)take(blocks * 4);
        random = take(values);
    }

  private:
    std::unique_ptr<uint8_t[]> memory_;
    int64_t capacity_ = 0;
};

static thread_local Workspace workspace;

template <class Storage>
constexpr bool is_fp32 = std::is_same_v<Storage, float>;

// Runs task(0) .. task(count - 1) and returns the largest result; the order does not matter to any task.
template <class Task>
static int32_t run(int64_t count, int threads, const Task& task) {
    int32_t best = 0;
#ifdef _OPENMP
    if (threads > 1 && count > 1) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) reduction(max : best)
        for (int64_t i = 0; i < count; ++i) best = std::max(best, task(i));
        return best;
    }
#endif
    for (int64_t i = 0; i < count; ++i) best = std::max(best, task(i));
    return best;
}

template <class X>
static int32_t plain_amax(const Request& q, int threads) {
    const X* x = (const X*)q.x;
    const bool is_one_run = q.row_stride == q.columns;
    const int64_t run_rows = is_one_run ? 1 : std::max<int64_t>(1, AMAX_RUN_VALUES / q.columns);
    const int64_t total = q.rows * q.columns;
    const int64_t count = is_one_run ? (total + AMAX_RUN_VALUES - 1) / AMAX_RUN_VALUES
                                     : (q.rows + run_rows - 1) / run_rows;
    return run(count, threads, [&](int64_t i) {
        vi best{};
        if (is_one_run) {
            const int64_t begin = i * AMAX_RUN_VALUES;
            best = magnitude_max(x + begin, std::min(AMAX_RUN_VALUES, total - begin), best);
        } else {
            for (int64_t r = i * run_rows; r < std::min(q.rows, (i + 1) * run_rows); ++r)
                best = magnitude_max(x + r * q.row_stride, q.columns, best);
        }
        return reduce_max(best);
    });
}

using ScalesFn = void (*)(const int32_t*, int64_t, const TensorScale&, float, float*, float*);
using QuantiseFn = void (*)(Rows<const float>, Rows<float>, int64_t, int64_t, int64_t, int64_t, const float*,
                            const float*, const uint8_t*);

static ScalesFn scales_function(int32_t rule) {
    switch (rule) {
        case TWO_LEVEL_TE: return block_scales<TWO_LEVEL_TE>;
        case TWO_LEVEL_PAPER: return block_scales<TWO_LEVEL_PAPER>;
        case POWER_OF_TWO_UP: return block_scales<POWER_OF_TWO_UP>;
        case AMAX_OVER_MAX: return block_scales<AMAX_OVER_MAX>;
    }
    return nullptr;
}

template <class Element, bool DIVIDES>
static QuantiseFn quantise_function(const Request& q) {
    return q.stochastic ? quantise_panel<Element, true, DIVIDES> : quantise_panel<Element, false, DIVIDES>;
}

static QuantiseFn quantise_function(const Request& q) {
    const bool divides = q.scale_rule == AMAX_OVER_MAX;
    switch (q.element) {
        case IS_E2M1: return divides ? quantise_function<E2M1, true>(q) : quantise_function<E2M1, false>(q);
        case IS_E4M3: return divides ? quantise_function<E4M3, true>(q) : quantise_function<E4M3, false>(q);
    }
    return nullptr;
}

// Random bytes of a panel, laid out like it (the padding's are arbitrary).
static void panel_bytes(const Request& q, const Panels& p, const Window& w, uint8_t* out) {
    if (w.columns == q.columns && w.columns == p.width) {
        random_bytes((uint64_t)(w.top * q.columns), w.rows * w.columns, q.seed, out);
        return;
    }
    for (int64_t r = 0; r < w.rows; ++r)
        random_bytes((uint64_t)((w.top + r) * q.columns + w.left), w.columns, q.seed, out + r * p.width);
}

template <class X, class Out>
static int32_t quantise_tensor(const Request& q) {
    const ScalesFn scales = scales_function(q.scale_rule);
    const QuantiseFn quantise_values = quantise_function(q);
    if (!scales || !quantise_values) return UNSUPPORTED;
    const float element_max = q.element == IS_E2M1 ? E2M1::MAX : E4M3::MAX;
    const bool is_two_level = q.scale_rule == TWO_LEVEL_TE || q.scale_rule == TWO_LEVEL_PAPER;
    const Panels p(q);
    const int threads = (int)std::max<int64_t>(
        1, std::min<int64_t>(q.threads, q.rows * q.columns / VALUES_PER_THREAD));
    float factors[MAX_HADAMARD];
    if (q.hadamard) hadamard_factors(q.hadamard, q.signs, factors);

    // Transforming again in the second pass costs less than a trip to memory; a small tensor is kept in out instead.
    const bool keeps_transformed = is_two_level && q.hadamard && q.rows * q.columns <= KEPT_VALUES;
    Out* const out = (Out*)q.out;

    TensorScale tensor;
    if (is_two_level) {
        const int32_t amax = !q.hadamard ? plain_amax<X>(q, threads) : run(p.count(), threads, [&](int64_t i) {
            const Window w(q, p, i);
            workspace.reserve(q, p);
            float* panel = workspace.panel;
            read_panel((const X*)q.x + w.top * q.row_stride + w.left, q.row_stride, w, panel, p.rows, p.width);
            transform_panel(panel, p.rows, p.width, q.hadamard, q.along, factors);
            if (keeps_transformed)
                write_panel(panel, w, p.width, out + w.top * q.columns + w.left, q.columns, 1.0f, false);
            return reduce_max(magnitude_max(panel, p.rows * p.width, vi{}));
        });
        *q.amax = bits_to_float(amax);
        if (amax >= EXPONENT) return NON_FINITE;
        tensor = tensor_scale(*q.amax, element_max * q.scale_max);
        *q.gemm_scale = tensor.gemm;
    }

    const int32_t amax = run(p.count(), threads, [&](int64_t i) {
        const Window w(q, p, i);
        workspace.reserve(q, p);
        const Workspace& s = workspace;
        const X* const source = (const X*)q.x + w.top * q.row_stride + w.left;
        Out* const target = out + w.top * q.columns + w.left;
        // FP32 panels without padding are read and written where they lie.
        const bool is_whole = w.rows == p.rows && w.columns == p.width;
        Rows<const float> from{s.panel, p.width};
        if (keeps_transformed) {
            if (is_whole && is_fp32<Out>)
                from = {(const float*)target, q.columns};
            else
                read_panel(target, q.columns, w, s.panel, p.rows, p.width);
        } else if (is_whole && is_fp32<X> && !q.hadamard) {
            from = {(const float*)source, q.row_stride};
        } else {
            read_panel(source, q.row_stride, w, s.panel, p.rows, p.width);
            if (q.hadamard) transform_panel(s.panel, p.rows, p.width, q.hadamard, q.along, factors);
        }
        const bool writes_in_place = is_whole && is_fp32<Out> && !q.dequantises;
        const Rows<float> to = writes_in_place ? Rows<float>{(float*)target, q.columns} : Rows<float>{s.panel, p.width};

        const int64_t blocks = p.rows / q.tile_rows * (p.width / q.tile_columns);
        const int32_t largest = block_amaxes(from, p.rows, p.width, q.tile_rows, q.tile_columns, s.amaxes);
        for (int j = 0; j < LANES; ++j) s.amaxes[blocks + j] = 0;  // the scales are computed a vector at a time
        scales(s.amaxes, blocks, tensor, element_max, s.encode, s.decode);
        if (q.stochastic) panel_bytes(q, p, w, s.random);
        quantise_values(from, to, p.rows, p.width, q.tile_rows, q.tile_columns, s.encode, s.decode, s.random);
        if (!writes_in_place)
            write_panel(s.panel, w, p.width, target, q.columns, tensor.dequant, q.dequantises != 0);
        return largest;
    });
    if (!is_two_level) *q.amax = bits_to_float(amax);
    return amax >= EXPONENT ? NON_FINITE : DONE;
}

}  // namespace repro

extern "C" int32_t repro_quantize(const repro::Request* request) {
    using namespace repro;
    const Request& q = *request;
    if (q.x_storage == STORES_BF16)
        return q.out_storage == STORES_BF16 ? quantise_tensor<uint16_t, uint16_t>(q)
                                            : quantise_tensor<uint16_t, float>(q);
    return q.out_storage == STORES_BF16 ? quantise_tensor<float, uint16_t>(q) : quantise_tensor<float, float>(q);
}
