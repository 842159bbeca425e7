// What the rows of a first layer's call take their sums from.
//
// A row takes one entry of the table of each group and column. Where few combinations of the values of some of these
// occur among the rows, as of a date and its month or of columns of two values each, the sums of their entries are made
// once for each combination, and a row takes one entry instead of several. So do the gradients on their way back.

#include "input_layer.h"

#include <algorithm>

namespace {

using namespace dkan;

// Joint values that an entry has at most: one for so many rows, and so many in all.
constexpr int64_t ROWS_PER_VALUE = 4, MOST_VALUES = 256;
// Entries that another one may join: the latest, since those before are full.
constexpr int64_t MOST_TRIED = 4;
// A part of the rows tells at once of most entries that they have more: so many among its rows.
constexpr int64_t PARTS = 8;
constexpr double VALUES_PER_ROW = 0.6;

// Numbers keys in the order in which they occur.
class Numbering {
  public:
    explicit Numbering(int64_t rows) : samples_(rows) {}

    // What was known is forgotten at no cost.
    void begin(int64_t keys) {
        if (static_cast<int64_t>(known_.size()) < keys) known_.resize(keys);
        begun_ += count_;
        count_ = 0;
    }

    int32_t number(int64_t key, int64_t row) {
        if (known_[key] <= begun_) {
            samples_[count_] = static_cast<int32_t>(row);
            known_[key] = begun_ + ++count_;
        }
        return known_[key] - begun_ - 1;
    }

    int64_t count() const { return count_; }
    // The row of each key that had it first.
    std::vector<int32_t> samples() const { return {samples_.begin(), samples_.begin() + count_}; }

  private:
    std::vector<int32_t> samples_, known_;
    int32_t begun_ = 0, count_ = 0;
};

// An entry that others may join.
struct Candidate {
    Entry entry;
    const int32_t* values;  // [B] counted from 0
    int64_t count;          // of values
};

Candidate candidate_of(const InputCall& call, Entry& entry, Numbering& numbering) {
    const int64_t part = entry.parts[0];
    if (const InputColumn* column = call.column_of(part)) {
        return {std::move(entry), call.indices_of(part), static_cast<int64_t>(column->values.size())};
    }
    // The indices of a group are rows of its table, most of which do not occur.
    numbering.begin(call.groups[part].size);
    entry.joint.resize(call.a.rows);
    for (int64_t b = 0; b < call.a.rows; ++b) entry.joint[b] = numbering.number(call.indices_of(part)[b], b);
    const int32_t* values = entry.joint.data();
    return {std::move(entry), values, numbering.count()};
}

// Makes two entries one if they have few joint values; `joint` is memory for these.
bool join(Candidate& to, const Candidate& other, int64_t most, Numbering& numbering, std::vector<int32_t>& joint) {
    const int64_t B = joint.size(), size = B / PARTS;
    numbering.begin(to.count * other.count);
    for (int64_t first = 0; first < B; first += size) {
        for (int64_t b = first; b < std::min(B, first + size); ++b) {
            joint[b] = numbering.number(to.values[b] * other.count + other.values[b], b);
        }
        if (numbering.count() > (first ? most : std::min<int64_t>(most, size * VALUES_PER_ROW))) return false;
    }
    to.entry.joint = joint;
    to.entry.samples = numbering.samples();
    to.entry.parts.push_back(other.entry.parts[0]);
    to.values = to.entry.joint.data();
    to.count = numbering.count();
    return true;
}

}  // namespace

void dkan::list_entries(InputCall& call) {
    const int64_t parts = call.groups.size() + call.columns.size();
    for (int64_t part = 0; part < parts; ++part) call.entries.push_back({{part}, {}, {}, 0, {}, {}});
}

void dkan::join_entries(InputCall& call) {
    if (call.a.rows < PARTS) return;
    const int64_t most = std::min(call.a.rows / ROWS_PER_VALUE, MOST_VALUES);
    Numbering numbering(call.a.rows);
    std::vector<int32_t> joint(call.a.rows);
    std::vector<Candidate> candidates, joined;
    for (Entry& entry : call.entries) candidates.push_back(candidate_of(call, entry, numbering));
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& left, const Candidate& right) {
        return left.count < right.count;
    });
    for (Candidate& each : candidates) {
        const auto first = joined.end() - std::min<int64_t>(MOST_TRIED, joined.size());
        const bool is_taken = each.count <= most && std::any_of(first, joined.end(), [&](Candidate& other) {
            return join(other, each, most, numbering, joint);
        });
        if (!is_taken) joined.push_back(std::move(each));
    }
    call.entries.clear();
    for (Candidate& each : joined) {
        if (!each.entry.is_joint()) each.entry.joint = {};
        call.entries.push_back(std::move(each.entry));
    }
}

void dkan::sort_rows(const InputCall& call, Entry& entry) {
    const int64_t B = call.a.rows, values = values_of(call, entry);
    if (!values) return;
    const int32_t* indices = entry.is_joint() ? entry.joint.data() : call.indices_of(entry.parts[0]);
    entry.order.resize(B);
    entry.ends.assign((B + SORTED_ROWS - 1) / SORTED_ROWS * values, 0);
    int32_t* ends = entry.ends.data();
    for (int64_t first = 0; first < B; first += SORTED_ROWS, ends += values) {
        const int64_t stop = std::min(B, first + SORTED_ROWS);
        for (int64_t b = first; b < stop; ++b) ++ends[indices[b]];
        int32_t next = static_cast<int32_t>(first);
        for (int64_t value = 0; value < values; ++value) next += std::exchange(ends[value], next);
        for (int64_t b = first; b < stop; ++b) entry.order[ends[indices[b]]++] = static_cast<int32_t>(b);
    }
}
