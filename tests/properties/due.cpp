#include "due.h"

#include <algorithm>

namespace nvshare::properties {
namespace {

bool has_work(const Tree& tree, const std::string& name) {
  const Node& node = tree.at(name);
  return node.works || std::any_of(node.parts.begin(), node.parts.end(),
                                   [&](const auto& part) { return has_work(tree, part); });
}

// The parts with a limit that compete for what `name` has: its own, and those of parts without one.
void limits_in(const Tree& tree, const std::string& name, std::vector<std::string>& out) {
  for (const std::string& part : tree.at(name).parts) {
    if (!has_work(tree, part)) continue;
    if (tree.at(part).limit < 100) {
      out.push_back(part);
    } else {
      limits_in(tree, part, out);
    }
  }
}

// Whether a client without a limit of its own competes for what `name` has.
bool has_best_effort(const Tree& tree, const std::string& name) {
  const Node& node = tree.at(name);
  if (node.works && (name.empty() || !node.parts.empty() || node.limit == 100)) return true;
  return std::any_of(node.parts.begin(), node.parts.end(), [&](const auto& part) {
    return tree.at(part).limit == 100 && has_work(tree, part) && has_best_effort(tree, part);
  });
}

bool is_leaf(const Tree& tree, const std::string& name) {
  return tree.at(name).parts.empty();
}

// The most that the tenant's clients can use of its limit.
double usable(const Tree& tree, const std::string& name) {
  const Node& node = tree.at(name);
  if (is_leaf(tree, name) || has_best_effort(tree, name)) return node.limit;
  std::vector<std::string> limits;
  limits_in(tree, name, limits);
  double sum = 0;
  for (const std::string& one : limits) sum += usable(tree, one);
  return std::min<double>(node.limit, sum);
}

void share_rest(const Tree& tree, const std::string& name, double rest, Due& due) {
  const Node& node = tree.at(name);
  std::vector<std::string> parts;
  for (const std::string& part : node.parts) {
    if (tree.at(part).limit == 100 && has_best_effort(tree, part)) parts.push_back(part);
  }
  const double each = rest / static_cast<double>(parts.size() + (node.works ? 1 : 0));
  if (node.works) due[name] += each;
  for (const std::string& part : parts) share_rest(tree, part, each, due);
}

// `factor`: how much limits outside have shrunk.
void share_out(const Tree& tree, const std::string& name, double factor, int best_effort_percent,
               Due& due) {
  const double has = tree.at(name).limit * factor;
  if (is_leaf(tree, name)) {
    due[name] += has;
    return;
  }
  std::vector<std::string> limits;
  limits_in(tree, name, limits);
  double sum = 0;
  for (const std::string& one : limits) sum += usable(tree, one) * factor;
  const bool best_effort = has_best_effort(tree, name);
  const double room = best_effort ? has * (100 - best_effort_percent) / 100 : has;
  const double shrink = sum > room ? room / sum : 1;
  for (const std::string& one : limits) {
    share_out(tree, one, factor * shrink, best_effort_percent, due);
  }
  if (best_effort) share_rest(tree, name, has - sum * shrink, due);
}

}  // namespace

Due dues_of(const Tree& tree, int best_effort_percent) {
  Due due;
  if (tree.contains("")) share_out(tree, "", 1, best_effort_percent, due);
  return due;
}

}  // namespace nvshare::properties
