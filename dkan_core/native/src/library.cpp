// What Python calls: chooses the passes that this processor has, and has them called.

#include "tasks.h"

#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#if defined(DKAN_AMX_BF16) && defined(__linux__)
#define DKAN_MATRIX_UNIT
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define DKAN_EXPORT extern "C" __attribute__((visibility("default")))

extern const dkan::Passes portable;
#if defined(__x86_64__)
extern const dkan::Passes avx2;
extern const dkan::Passes avx512;
#if defined(DKAN_AVX512_BF16)
extern const dkan::Passes avx512_bf16;
#endif
#if defined(DKAN_MATRIX_UNIT)
extern const dkan::InputPasses input_passes_amx_bf16;
#endif
#endif

namespace {

using namespace dkan;

// Inputs of a task of the basis, rows of a sum of table rows, and columns of its gradient.
constexpr int64_t BASIS_TASK = 4096, TABLE_TASK_ROWS = 64, TABLE_TASK_COLUMNS = 64;
// Parameters that AdamW updates at once.
constexpr int64_t ADAMW_TASK = 1 << 15;
// Values of a column that are encoded at once: enough that preparing the search costs little.
constexpr int64_t ENCODE_TASK_ROWS = 1 << 16;
// Codes that are scattered at once: a cache line of so many rows.
constexpr int64_t SCATTER_TASK_COLUMNS = 64, SCATTER_TASK_ROWS = 1 << 13;

#if defined(DKAN_MATRIX_UNIT)
// The other passes are those of AVX-512: they have no products in bfloat16.
const Passes& amx_bf16() {
    static Passes found = avx512_bf16;
    found.name = "amx_bf16";
    found.input_layer = &input_passes_amx_bf16;
    return found;
}

// Asks Linux for the registers of the matrix unit, for this process and those that it forks.
bool may_use_matrix_unit() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

std::vector<const Passes*> find_variants() {
    std::vector<const Passes*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw")) {
#if defined(DKAN_MATRIX_UNIT)
        if (__builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512bf16") && may_use_matrix_unit()) {
            found.push_back(&amx_bf16());
        }
#endif
#if defined(DKAN_AVX512_BF16)
        if (__builtin_cpu_supports("avx512bf16")) found.push_back(&avx512_bf16);
#endif
        found.push_back(&avx512);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&avx2);
#endif
    found.push_back(&portable);
    return found;
}

const std::vector<const Passes*>& variants() {
    static const std::vector<const Passes*> found = find_variants();
    return found;
}

// The fastest one, unless a test asks for another.
std::atomic<int> chosen{0};

}  // namespace

const Passes& dkan::passes() { return *variants()[chosen]; }

DKAN_EXPORT const char* dkan_fingerprint() { return DKAN_FINGERPRINT; }

DKAN_EXPORT int dkan_variants() { return static_cast<int>(variants().size()); }

DKAN_EXPORT const char* dkan_variant_name(int index) { return variants()[index]->name; }

DKAN_EXPORT const char* dkan_variant() { return passes().name; }

DKAN_EXPORT void dkan_use_variant(int index) { chosen = index; }

DKAN_EXPORT void dkan_basis(const Basis* a, int backward, int threads) {
    const auto pass = backward ? passes().basis_backward : passes().basis_forward;
    for_each_task(ceil_div(a->count, BASIS_TASK), a->count * a->num_centers, threads, [&](int64_t task) {
        pass(*a, task * BASIS_TASK, std::min(a->count, (task + 1) * BASIS_TASK));
    });
}

// Returns the first index that is no row of the table, and nothing is computed then; -1 if all are.
DKAN_EXPORT int64_t dkan_table_sum(const TableSum* a, int backward, int threads) {
    const int64_t count = a->rows * a->per_row;
    for (int64_t index = 0; index < count; ++index) {
        if (a->indices[index] < 0 || a->indices[index] >= a->table_rows) return index;
    }
    const int64_t size = backward ? TABLE_TASK_COLUMNS : TABLE_TASK_ROWS, whole = backward ? a->width : a->rows;
    const auto pass = backward ? passes().table_backward : passes().table_forward;
    for_each_task(ceil_div(whole, size), count * a->width, threads, [&](int64_t task) {
        pass(*a, task * size, std::min(whole, (task + 1) * size));
    });
    return -1;
}

DKAN_EXPORT float dkan_adamw(const AdamW* a, int threads) {
    const int64_t tasks = ceil_div(a->count, ADAMW_TASK);
    std::vector<float> squares(tasks);
    for_each_task(tasks, a->count * 4, threads, [&](int64_t task) {
        squares[task] = passes().adamw(*a, task * ADAMW_TASK, std::min(a->count, (task + 1) * ADAMW_TASK));
    });
    return std::accumulate(squares.begin(), squares.end(), 0.0f);
}

DKAN_EXPORT void dkan_encode(const Column* columns, int64_t count, int64_t rows, int threads) {
    const int64_t per_column = ceil_div(rows, ENCODE_TASK_ROWS);
    for_each_task(count * per_column, rows * count, threads, [&](int64_t task) {
        const int64_t start = task % per_column * ENCODE_TASK_ROWS;
        passes().encode(columns[task / per_column], start, std::min(ENCODE_TASK_ROWS, rows - start));
    });
}

DKAN_EXPORT void dkan_mix_rows(uint64_t first, int64_t count, uint64_t increment, uint32_t* out) {
    passes().mix_rows(first, count, increment, out);
}

// Returns a row whose code is none of the term's, and nothing is computed then; -1 if there is none.
DKAN_EXPORT int64_t dkan_likelihood(const Likelihood* a, int adds) {
    uint16_t greatest = 0;
    for (int64_t row = 0; row < a->rows; ++row) greatest = std::max(greatest, a->codes[row]);
    if (greatest >= a->size) return std::max_element(a->codes, a->codes + a->rows) - a->codes;
    (adds ? passes().add_codes : passes().likelihood_sums)(*a);
    return -1;
}

DKAN_EXPORT void dkan_scatter(const Scatter* a, int threads) {
    const int64_t per_range = ceil_div(a->count, SCATTER_TASK_COLUMNS);
    for_each_task(ceil_div(a->rows, SCATTER_TASK_ROWS) * per_range, a->rows * a->count, threads, [&](int64_t task) {
        const int64_t first = task % per_range * SCATTER_TASK_COLUMNS, start = task / per_range * SCATTER_TASK_ROWS;
        passes().scatter(*a, first, std::min(a->count, first + SCATTER_TASK_COLUMNS), start,
                       std::min(a->rows, start + SCATTER_TASK_ROWS));
    });
}
