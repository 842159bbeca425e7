// Keys of rows for dropout.

#include "arguments.h"

// The upper half of what splitmix64 makes of consecutive numbers; see `splitmix64` in dkan_core/data/hashing.py.
void DKAN_MIX_ROWS(uint64_t first, int64_t count, uint64_t increment, uint32_t* out) {
    for (int64_t row = 0; row < count; ++row) {
        uint64_t z = first + row + increment;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        out[row] = static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
    }
}
