// What every float has: T is f32 or f64, U and I are the integers of its width.
// WGSL may assume that there is no NaN, no infinity and no sign of zero: what depends on them is
// decided by bits. params[0].y is zero, and no compiler knows it: a value that went through
// opaque_T() is not folded into its neighbours, which WGSL allows and which loses low digits.

const TOP_f32: u32 = 0x80000000u;
const INFINITE_f32: u32 = 0x7f800000u;
const HALF_ONE_f32: u32 = 0x00400000u;
const MANTISSA_f32: u32 = 23u;
const BIAS_f32: i32 = 127;
const TOP_f64: u64 = 0x8000000000000000lu;
const INFINITE_f64: u64 = 0x7ff0000000000000lu;
const HALF_ONE_f64: u64 = 0x0008000000000000lu;
const MANTISSA_f64: u32 = 52u;
const BIAS_f64: i32 = 1023;

fn opaque_T(x: T) -> T {
  return bitcast<T>(bitcast<U>(x) ^ U(params[0].y));
}

fn nan_T() -> T {
  return bitcast<T>((INFINITE_T | HALF_ONE_T) ^ U(params[0].y));
}

fn infinity_T() -> T {
  return bitcast<T>(INFINITE_T ^ U(params[0].y));
}

fn is_nan_T(x: T) -> bool {
  return (bitcast<U>(x) & ~TOP_T) > INFINITE_T;
}

fn is_infinite_T(x: T) -> bool {
  return (bitcast<U>(x) & ~TOP_T) == INFINITE_T;
}

fn is_finite_T(x: T) -> bool {
  return (bitcast<U>(x) & ~TOP_T) < INFINITE_T;
}

fn is_signed_T(x: T) -> bool {
  return (bitcast<U>(x) & TOP_T) != U(0);
}

fn is_true_T(x: T) -> bool {
  return (bitcast<U>(x) & ~TOP_T) != U(0);
}

fn abs_T(x: T) -> T {
  return bitcast<T>(bitcast<U>(x) & ~TOP_T);
}

fn negative_T(x: T) -> T {
  return bitcast<T>(bitcast<U>(x) ^ TOP_T);
}

fn copysign_T(x: T, y: T) -> T {
  return bitcast<T>((bitcast<U>(x) & ~TOP_T) | (bitcast<U>(y) & TOP_T));
}

// Numbers in their order as integers, both zeros at 0. Also undoes itself.
fn order_T(x: T) -> I {
  let b = bitcast<I>(x);
  return select(b, bitcast<I>(TOP_T) - b, b < I(0));
}

fn less_T(x: T, y: T) -> bool {
  return order_T(x) < order_T(y) && !is_nan_T(x) && !is_nan_T(y);
}

fn less_equal_T(x: T, y: T) -> bool {
  return order_T(x) <= order_T(y) && !is_nan_T(x) && !is_nan_T(y);
}

fn equal_T(x: T, y: T) -> bool {
  return order_T(x) == order_T(y) && !is_nan_T(x) && !is_nan_T(y);
}

fn maximum_T(x: T, y: T) -> T {
  if (is_nan_T(x)) { return x; }
  if (is_nan_T(y)) { return y; }
  return select(y, x, order_T(x) >= order_T(y));
}

fn minimum_T(x: T, y: T) -> T {
  if (is_nan_T(x)) { return x; }
  if (is_nan_T(y)) { return y; }
  return select(y, x, order_T(x) <= order_T(y));
}

fn sign_T(x: T) -> T {
  if (is_nan_T(x)) { return x; }
  let at = order_T(x);
  return select(select(T(0), T(1), at > I(0)), T(-1), at < I(0));
}

fn nextafter_T(x: T, y: T) -> T {
  if (is_nan_T(x)) { return x; }
  if (is_nan_T(y)) { return y; }
  let start = order_T(x);
  let goal = order_T(y);
  if (start == goal) { return y; }
  let at = bitcast<T>(start + select(I(-1), I(1), start < goal));
  return bitcast<T>(order_T(at));
}

fn mantissa_T(magnitude: U) -> U {
  let one = U(1) << MANTISSA_T;
  return select(magnitude, (magnitude & (one - U(1))) | one, magnitude >= one);
}

// Exact: long division on the mantissas, as many bits at a time as there is room for.
fn fmod_T(x: T, y: T) -> T {
  let a = bitcast<U>(x) & ~TOP_T;
  let b = bitcast<U>(y) & ~TOP_T;
  if (a >= INFINITE_T || b > INFINITE_T || b == U(0)) { return nan_T(); }
  if (a < b) { return x; }
  let last = max(u32(b >> MANTISSA_T), 1u);
  let divisor = mantissa_T(b);
  var exponent = max(u32(a >> MANTISSA_T), 1u);
  var rest = mantissa_T(a) % divisor;
  while (exponent > last && rest != U(0)) {
    let step = min(exponent - last, ROOM_T);
    rest = (rest << step) % divisor;
    exponent -= step;
  }
  exponent = last;
  while (rest != U(0) && rest < (U(1) << MANTISSA_T) && exponent > 1u) {
    rest = rest << 1u;
    exponent -= 1u;
  }
  let one = U(1) << MANTISSA_T;
  let normal = (rest & (one - U(1))) | (U(exponent) << MANTISSA_T);
  return bitcast<T>(select(rest, normal, rest >= one) | (bitcast<U>(x) & TOP_T));
}

const ROOM_f32: u32 = 8u;
const ROOM_f64: u32 = 11u;

fn remainder_T(x: T, y: T) -> T {
  let rest = fmod_T(x, y);
  if (is_nan_T(rest)) { return rest; }
  if (!is_true_T(rest)) { return copysign_T(rest, y); }
  return select(rest, rest + y, is_signed_T(rest) != is_signed_T(y));
}

fn floor_divide_T(x: T, y: T) -> T {
  if (!is_true_T(y)) { return x / y; }
  let rest = fmod_T(x, y);
  if (is_nan_T(rest)) { return rest; }
  let whole = round((x - rest) / y);
  return select(whole, whole - T(1), is_true_T(rest) && is_signed_T(rest) != is_signed_T(y));
}

fn exponent_T(x: T) -> i32 {
  return i32((bitcast<U>(x) & ~TOP_T) >> MANTISSA_T) - BIAS_T;
}

// Toward 0, what is out of range to the nearest bound, NaN to 0.
fn to_i32_T(x: T) -> i32 {
  if (is_nan_T(x)) { return 0; }
  if (exponent_T(x) < 31) { return i32(x); }
  return select(2147483647, -2147483647 - 1, is_signed_T(x));
}

fn to_u32_T(x: T) -> u32 {
  if (is_nan_T(x) || is_signed_T(x)) { return 0u; }
  if (exponent_T(x) < 32) { return u32(x); }
  return 0xffffffffu;
}

fn to_i64_T(x: T) -> i64 {
  if (is_nan_T(x)) { return 0li; }
  if (exponent_T(x) < 63) { return i64(x); }
  return select(9223372036854775807li, -9223372036854775807li - 1li, is_signed_T(x));
}

fn to_u64_T(x: T) -> u64 {
  if (is_nan_T(x) || is_signed_T(x)) { return 0lu; }
  if (exponent_T(x) < 64) { return u64(x); }
  return 0xfffffffffffffffflu;
}
