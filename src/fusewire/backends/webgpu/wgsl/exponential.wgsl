// Exponentials and logarithms of f32 within 4 units in the last place. WGSL promises less of its
// own: exp may be off by 3 + 2|x| units, log near 1 by 2^-21 whatever its size.

fn power_of_two(n: i32) -> f32 {
  return bitcast<f32>(u32(n + 127) << 23u);
}

// In two steps, so that neither factor leaves the range when only the product does.
fn scale(x: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return opaque_f32(x * power_of_two(half)) * power_of_two(n - half);
}

// e^r - 1 for |r| <= log(2) / 2.
fn small_expm1(r: f32) -> f32 {
  var p = 1.9875691500e-4;
  p = p * r + 1.3981999507e-3;
  p = p * r + 8.3334519073e-3;
  p = p * r + 4.1665795894e-2;
  p = p * r + 1.6666665459e-1;
  p = p * r + 5.0000001201e-1;
  return p * (r * r) + r;
}

// x less n log(2).
fn without_twos(x: f32, n: f32) -> f32 {
  return opaque_f32(x - n * 0.693359375) + n * 2.12194440e-4;
}

fn exp_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (x > 88.8) { return infinity_f32(); }
  if (x < -104.0) { return 0.0; }
  let n = round(x * 1.44269504);
  return scale(1.0 + small_expm1(without_twos(x, n)), i32(n));
}

fn exp2_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (x >= 128.0) { return infinity_f32(); }
  if (x < -150.0) { return 0.0; }
  let n = round(x);
  return scale(1.0 + small_expm1((x - n) * 0.693147181), i32(n));
}

fn expm1_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (x > 17.0) { return exp_f32(x); }
  if (x < -18.0) { return -1.0; }
  if (abs(x) < 0.34) { return small_expm1(x); }
  let n = round(x * 1.44269504);
  let unit = power_of_two(i32(n));
  return unit * small_expm1(without_twos(x, n)) + (unit - 1.0);
}

// The mantissa in sqrt(1/2)..sqrt(2) and the exponent of a positive finite number.
fn parts(x: f32) -> vec2<f32> {
  var bits = bitcast<u32>(x);
  var exponent = -127;
  if (bits < 0x00800000u) {
    let shift = countLeadingZeros(bits) - 8u;
    bits = bits << shift;
    exponent -= i32(shift);
  }
  exponent += i32(bits >> 23u);
  let mantissa = bits & 0x007fffffu;
  let above = (mantissa + 0x004afb20u) & 0x00800000u;
  exponent += i32(above >> 23u);
  return vec2<f32>(bitcast<f32>(mantissa | (above ^ 0x3f800000u)), f32(exponent));
}

// log(1 + f) + rest for f in sqrt(1/2) - 1..sqrt(2) - 1, rest small.
fn small_log(f: f32, rest: f32) -> f32 {
  let s = f / (2.0 + f);
  let z = s * s;
  let w = z * z;
  let series = z * (0.66666662693 + w * 0.28498786688) + w * (0.40000972152 + w * 0.24279078841);
  let square = 0.5 * f * f;
  return f - (square - (s * (square + series) + rest));
}

// Whether log(x) is not a number that the series gives; then what it is instead.
fn lacks_log(x: f32) -> bool {
  return bitcast<u32>(x) - 1u >= INFINITE_f32 - 1u;
}

fn special_log(x: f32) -> f32 {
  if (!is_true_f32(x)) { return negative_f32(infinity_f32()); }
  if (is_nan_f32(x) || is_signed_f32(x)) { return nan_f32(); }
  return x;
}

fn log_f32(x: f32) -> f32 {
  if (lacks_log(x)) { return special_log(x); }
  let p = parts(x);
  return p.y * 6.9313812256e-1 + small_log(p.x - 1.0, p.y * 9.0580006145e-6);
}

fn log2_f32(x: f32) -> f32 {
  if (lacks_log(x)) { return special_log(x); }
  let p = parts(x);
  return p.y + small_log(p.x - 1.0, 0.0) * 1.44269504;
}

fn log10_f32(x: f32) -> f32 {
  if (lacks_log(x)) { return special_log(x); }
  let p = parts(x);
  let low = p.y * 7.9034151668e-7;
  return p.y * 3.0102920532e-1 + (low + small_log(p.x - 1.0, 0.0) * 0.4342944819);
}

fn log1p_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (x <= -1.0 || x > 1.0e30) { return log_f32(1.0 + x); }
  let u = opaque_f32(1.0 + x);
  let lost = select(x - (u - 1.0), 1.0 - (u - x), x > 1.0) / u;
  return log_f32(u) + lost;
}

fn sigmoid_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let small = exp_f32(-abs(x));
  return select(1.0, small, is_signed_f32(x)) / (1.0 + small);
}

fn sinh_f32(x: f32) -> f32 {
  let size = abs_f32(x);
  if (is_nan_f32(x) || is_infinite_f32(x)) { return x; }
  if (size > 88.0) {
    let root = exp_f32(0.5 * size);
    return copysign_f32(opaque_f32(0.5 * root) * root, x);
  }
  let t = expm1_f32(size);
  return copysign_f32(0.5 * (t + t / (t + 1.0)), x);
}

fn cosh_f32(x: f32) -> f32 {
  let size = abs_f32(x);
  if (is_nan_f32(x) || is_infinite_f32(x)) { return size; }
  if (size > 88.0) {
    let root = exp_f32(0.5 * size);
    return opaque_f32(0.5 * root) * root;
  }
  let t = exp_f32(size);
  return 0.5 * t + 0.5 / t;
}

fn tanh_f32(x: f32) -> f32 {
  let size = abs_f32(x);
  if (is_nan_f32(x)) { return x; }
  if (size > 10.0) { return copysign_f32(1.0, x); }
  if (size > 0.625) { return copysign_f32(1.0 - 2.0 / (exp_f32(2.0 * size) + 1.0), x); }
  let z = x * x;
  var p = -5.70498872745e-3;
  p = p * z + 2.06390887954e-2;
  p = p * z - 5.37397155531e-2;
  p = p * z + 1.33314422036e-1;
  p = p * z - 3.33332819422e-1;
  return p * z * x + x;
}

fn asinh_f32(x: f32) -> f32 {
  let size = abs_f32(x);
  if (is_nan_f32(x) || is_infinite_f32(x)) { return x; }
  if (size > 1.0e9) { return copysign_f32(log_f32(size) + 0.693147181, x); }
  let square = size * size;
  let root = sqrt(square + 1.0);
  if (size > 2.0) {
    return copysign_f32(log_f32(2.0 * size + 1.0 / (root + size)), x);
  }
  return copysign_f32(log1p_f32(size + square / (1.0 + root)), x);
}

fn acosh_f32(x: f32) -> f32 {
  if (is_nan_f32(x) || order_f32(x) < order_f32(1.0)) { return nan_f32(); }
  if (x > 1.0e9) { return log_f32(x) + 0.693147181; }
  if (x > 2.0) { return log_f32(2.0 * x - 1.0 / (x + sqrt(x * x - 1.0))); }
  let t = x - 1.0;
  return log1p_f32(t + sqrt(2.0 * t + t * t));
}

fn atanh_f32(x: f32) -> f32 {
  let size = abs_f32(x);
  if (is_nan_f32(x) || order_f32(size) > order_f32(1.0)) { return nan_f32(); }
  if (size == 1.0) { return copysign_f32(infinity_f32(), x); }
  let twice = size + size;
  let near = twice + twice * size / (1.0 - size);
  let ratio = select(twice / (1.0 - size), near, size < 0.5);
  return copysign_f32(0.5 * log1p_f32(ratio), x);
}
