// The Gaussians of inputs on a grid.

#pragma once

#include "vectors.h"

namespace {

struct Grid {
    const float* centers;  // [G]
    int64_t num_centers;   // G
    float inverse_width;
};

// That of a call of any layer.
template <typename Call>
inline Grid grid_of(const Call& call) {
    return {call.centers, call.num_centers, call.inverse_width};
}

// How the centers are known to the compiler: any number of them; the usual 8 on an even grid, as far apart as the
// Gaussians are wide, so that loops over them unroll.
constexpr int ANY = 0, EVEN_GRID = -8;

template <int FIXED>
inline int64_t centers_of(int64_t num_centers) {
    return FIXED == ANY ? num_centers : 8;
}

inline bool is_even(const Grid& grid) {
    if (grid.num_centers != 8) return false;
    for (int64_t g = 1; g < 8; ++g) {
        const float apart = (grid.centers[g] - grid.centers[g - 1]) * grid.inverse_width - 1;
        if (!(apart < 1e-5f && apart > -1e-5f)) return false;
    }
    return true;
}

// Fills the Gaussians of some inputs.
template <int FIXED>
inline void gaussians(const Grid& grid, Float x, Float* basis) {
    const int64_t G = centers_of<FIXED>(grid.num_centers);
    for (int64_t g = 0; g < G; ++g) {
        const Float u = (x - grid.centers[g]) * grid.inverse_width;
        basis[g] = exp(-(u * u));
    }
}

// Eight on an even grid as far apart as they are wide, by two exponentials instead of eight. With u the distance from
// the middle of the grid, that around k is e^(-u^2) (e^u)^(2k) e^(-k^2), for k = -3.5 to 3.5. From the middle outwards
// each follows from the one before, and no factor leaves the range of float32 while |u| <= 9. Farther out all are below
// 1e-13, and taken for 0.
template <>
inline void gaussians<EVEN_GRID>(const Grid& grid, Float x, Float* basis) {
    const Float limit = splat(9.0f);
    const Float u = (x - 0.5f * (grid.centers[0] + grid.centers[7])) * grid.inverse_width;
    const Float below = u > limit ? limit : u;
    const Float clamped = below < -limit ? -limit : below;
    const Float middle = exp_in_range(-(clamped * clamped));
    const Float near = u != clamped ? Float{} : middle;
    const Float step = exp_in_range(clamped), back = 1.0f / step;
    basis[4] = near * step * 0.778800783f;  // e^(-1/4)
    basis[3] = near * back * 0.778800783f;
    const Float steps = step * step, backs = back * back;
    basis[5] = basis[4] * (steps * 0.135335283f);  // e^(-2)
    basis[2] = basis[3] * (backs * 0.135335283f);
    basis[6] = basis[5] * (steps * 0.0183156389f);  // e^(-4)
    basis[1] = basis[2] * (backs * 0.0183156389f);
    basis[7] = basis[6] * (steps * 0.00247875218f);  // e^(-6)
    basis[0] = basis[1] * (backs * 0.00247875218f);
}

}  // namespace
