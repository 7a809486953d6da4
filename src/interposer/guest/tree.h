#pragma once

#include <stdint.h>

#include "interposer/guest/ground.h"

namespace nvshare::interposer::guest {

template <typename T>
struct TreeNode {
  T* left = nullptr;
  T* right = nullptr;
};

// Records in order, each with its place in the tree inside itself: a treap, whose priorities are
// the records' own addresses, scattered. Not thread-safe. Zero when it is empty.
//
// Order::node(record) is its TreeNode, Order::before(a, b) whether a comes before b; no two records
// in a tree are equal.
template <typename T, typename Order>
class Tree {
 public:
  void insert(T* record) {
    Order::node(*record) = {};
    T* smaller = nullptr;
    T* larger = nullptr;
    split(root_, *record, smaller, larger);
    root_ = merge(merge(smaller, record), larger);
  }

  void remove(T* record) {
    T** place = &root_;
    while (*place != record) {
      auto& node = Order::node(**place);
      place = Order::before(*record, **place) ? &node.left : &node.right;
    }
    const auto& node = Order::node(*record);
    *place = merge(node.left, node.right);
  }

  // The last record that is not after `value`; null when there is none.
  T* at_or_before(const T& value) const {
    T* found = nullptr;
    for (T* at = root_; at != nullptr;) {
      if (Order::before(value, *at)) {
        at = Order::node(*at).left;
      } else {
        found = at;
        at = Order::node(*at).right;
      }
    }
    return found;
  }

  // The first record that is not before `value`; null when there is none.
  T* at_or_after(const T& value) const {
    T* found = nullptr;
    for (T* at = root_; at != nullptr;) {
      if (Order::before(*at, value)) {
        at = Order::node(*at).right;
      } else {
        found = at;
        at = Order::node(*at).left;
      }
    }
    return found;
  }

  T* last() const {
    T* at = root_;
    while (at != nullptr && Order::node(*at).right != nullptr) at = Order::node(*at).right;
    return at;
  }

  template <typename Visit>
  void for_each(Visit visit) const {
    visit_all(root_, visit);
  }

 private:
  static uint64_t priority(const T* record) {
    uint64_t mixed = reinterpret_cast<uint64_t>(record) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 32;
    return mixed * 0xd6e8feb86659fd93u;
  }

  static void split(T* at, const T& value, T*& smaller, T*& larger) {
    if (at == nullptr) {
      smaller = larger = nullptr;
    } else if (Order::before(*at, value)) {
      smaller = at;
      split(Order::node(*at).right, value, Order::node(*at).right, larger);
    } else {
      larger = at;
      split(Order::node(*at).left, value, smaller, Order::node(*at).left);
    }
  }

  static T* merge(T* smaller, T* larger) {
    if (smaller == nullptr) return larger;
    if (larger == nullptr) return smaller;
    if (priority(smaller) > priority(larger)) {
      Order::node(*smaller).right = merge(Order::node(*smaller).right, larger);
      return smaller;
    }
    Order::node(*larger).left = merge(smaller, Order::node(*larger).left);
    return larger;
  }

  template <typename Visit>
  static void visit_all(T* at, Visit& visit) {
    if (at == nullptr) return;
    visit_all(Order::node(*at).left, visit);
    visit(*at);
    visit_all(Order::node(*at).right, visit);
  }

  T* root_ = nullptr;
};

}  // namespace nvshare::interposer::guest
