// Status and Result: how every layer below csrc/torch reports errors. Nothing
// here throws; csrc/torch turns a Status into a PyTorch exception in one place.

#ifndef TN_BASE_STATUS_H_
#define TN_BASE_STATUS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tn {

// Numbered as in absl and in PJRT_Error_Code, so that codes pass through.
enum class StatusCode : int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// The upper-case name, e.g. "INVALID_ARGUMENT"; "UNKNOWN" for other numbers.
constexpr std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

// Success, or a code and a message. Success is one null pointer: cheap to
// return and to test. Copies of an error share its text.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) {
    if (code != StatusCode::kOk) {
      rep_ = std::make_shared<const Rep>(Rep{code, std::move(message)});
    }
  }

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  // Empty for success. Lives as long as any copy of this status.
  const std::string& message() const {
    static const std::string empty;
    return rep_ ? rep_->message : empty;
  }
  // "OK", or "INVALID_ARGUMENT: message".
  std::string to_string() const {
    std::string text(status_code_name(code()));
    if (rep_) text.append(": ").append(rep_->message);
    return text;
  }
  // The same code with `prefix` before the message; success stays success.
  Status with_prefix(std::string_view prefix) const {
    if (ok()) return *this;
    return Status(rep_->code, std::string(prefix) + rep_->message);
  }
  // For the rare place where an error can only be dropped; say why there.
  void ignore() const {}

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status ok_status() { return Status(); }
inline Status invalid_argument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
inline Status not_found(std::string message) {
  return Status(StatusCode::kNotFound, std::move(message));
}
inline Status resource_exhausted(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
inline Status failed_precondition(std::string message) {
  return Status(StatusCode::kFailedPrecondition, std::move(message));
}
inline Status unimplemented(std::string message) {
  return Status(StatusCode::kUnimplemented, std::move(message));
}
inline Status internal_error(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

// A T or the Status that says why there is none. T may be move-only.
// Reading the value of a failed result is a bug of the caller: it aborts with
// the status's text.
template <typename T>
class [[nodiscard]] Result {
 public:
  static_assert(!std::is_same_v<std::decay_t<T>, Status>);
  using value_type = T;

  // From an error. A success status is a bug and becomes an internal error.
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit
    if (status_.ok()) {
      status_ = internal_error("a Result was made from a success status without a value");
    }
  }
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit
  // From anything that T can be made of, e.g. unique_ptr<Derived>.
  template <typename U>
    requires(std::is_constructible_v<T, U&&> && !std::is_same_v<std::decay_t<U>, T> &&
             !std::is_same_v<std::decay_t<U>, Status> &&
             !std::is_same_v<std::decay_t<U>, Result<T>> && std::is_convertible_v<U&&, T>)
  Result(U&& value) : value_(std::forward<U>(value)) {}  // NOLINT: implicit

  Result(Result&&) = default;
  Result& operator=(Result&&) = default;
  Result(const Result&) = default;
  Result& operator=(const Result&) = default;

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    check();
    return *value_;
  }
  const T& value() const& {
    check();
    return *value_;
  }
  T&& value() && {
    check();
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void check() const {
    if (!ok()) {
      std::fprintf(stderr, "torchneuron: value of a failed result read: %s\n",
                   status_.to_string().c_str());
      std::abort();
    }
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace tn

#define TN_CONCAT_INNER_(a, b) a##b
#define TN_CONCAT_(a, b) TN_CONCAT_INNER_(a, b)

// TN_RETURN_IF_ERROR(expr): returns the status of `expr` when it is an error.
#define TN_RETURN_IF_ERROR(expr)       \
  do {                                 \
    ::tn::Status tn_status_ = (expr);  \
    if (!tn_status_.ok()) [[unlikely]] \
      return tn_status_;               \
  } while (false)

// TN_ASSIGN_OR_RETURN(auto x, expr): x takes the value of the result `expr`, or
// the function returns its status.
#define TN_ASSIGN_OR_RETURN(lhs, expr) \
  TN_ASSIGN_OR_RETURN_(TN_CONCAT_(tn_result_, __LINE__), lhs, expr)
#define TN_ASSIGN_OR_RETURN_(result, lhs, expr) \
  auto result = (expr);                         \
  if (!result.ok()) [[unlikely]]                \
    return result.status();                     \
  lhs = std::move(result).value()

#endif  // TN_BASE_STATUS_H_
