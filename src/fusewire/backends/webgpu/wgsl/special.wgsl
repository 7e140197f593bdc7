// Powers, roots, and the functions of statistics, of f32.

// The upper half of the mantissa: products of two of these are exact.
fn head(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// log2(x) of a positive finite number as a sum of two: the first with half a mantissa.
fn exact_log2(x: f32) -> vec2<f32> {
  var bits = bitcast<u32>(x);
  var exponent = -127;
  if (bits < 0x00800000u) {
    let shift = countLeadingZeros(bits) - 8u;
    bits = bits << shift;
    exponent -= i32(shift);
  }
  exponent += i32(bits >> 23u);
  let mantissa = bits & 0x007fffffu;
  let middle = mantissa > 0x001cc471u && mantissa < 0x005db3d7u;
  let above = mantissa >= 0x005db3d7u;
  exponent += select(0, 1, above);
  bits = (mantissa | 0x3f800000u) - select(0u, 0x00800000u, above);
  let a = bitcast<f32>(bits);
  let base = select(1.0, 1.5, middle);
  let u = a - base;
  let v = 1.0 / (a + base);
  let s = u * v;
  let s1 = head(s);
  // a + base, rounded to half a mantissa, and what that leaves.
  let sum1 = head(a + base);
  let sum2 = a - opaque_f32(sum1 - base);
  let s2 = v * ((u - s1 * sum1) - s1 * sum2);
  let z = s * s;
  var series = 2.0697501302e-1;
  series = series * z + 2.3066075146e-1;
  series = series * z + 2.7272811532e-1;
  series = series * z + 3.3333334327e-1;
  series = series * z + 4.2857143283e-1;
  series = series * z + 6.0000002384e-1;
  let r = z * z * series + s2 * (s1 + s);
  let square = s1 * s1;
  let t1 = head(3.0 + square + r);
  let t2 = r - (opaque_f32(t1 - 3.0) - square);
  let p = s1 * t1;
  let q = s2 * t1 + t2 * s;
  let p1 = head(p + q);
  let p2 = q - (p1 - p);
  let high = 9.6191406250e-1 * p1;
  let low = -1.1736857402e-4 * p1 + p2 * 9.6179670095e-1 + select(0.0, 1.56322085e-6, middle);
  let step = select(0.0, 5.84960938e-1, middle);
  let n = f32(exponent);
  let first = head(opaque_f32(opaque_f32(high + low) + step) + n);
  return vec2<f32>(first, low - (opaque_f32(opaque_f32(first - n) - step) - high));
}

// x^y for positive finite x and finite y.
fn positive_power(x: f32, y: f32) -> f32 {
  let log = exact_log2(x);
  let y1 = head(y);
  let high = y1 * log.x;
  let low = (y - y1) * log.x + y * log.y;
  let total = high + low;
  if (total > 128.1) { return infinity_f32(); }
  if (total < -151.0) { return 0.0; }
  let n = round(total);
  return scale(1.0 + small_expm1((opaque_f32(high - n) + low) * 0.693147181), i32(n));
}

fn power_f32(x: f32, y: f32) -> f32 {
  if (!is_true_f32(y) || equal_f32(x, 1.0)) { return 1.0; }
  if (is_nan_f32(x) || is_nan_f32(y)) { return nan_f32(); }
  let size = abs_f32(x);
  if (is_infinite_f32(y)) {
    if (equal_f32(size, 1.0)) { return 1.0; }
    let grows = less_f32(1.0, size) != is_signed_f32(y);
    return select(0.0, infinity_f32(), grows);
  }
  let whole = trunc(y) == y;
  let odd = whole && abs(y) < 16777216.0 && (i32(y) & 1) != 0;
  let sign = select(1.0, -1.0, odd && is_signed_f32(x));
  if (!is_true_f32(x) || is_infinite_f32(x)) {
    let large = is_infinite_f32(x) != is_signed_f32(y);
    return copysign_f32(select(0.0, infinity_f32(), large), sign);
  }
  if (is_signed_f32(x) && !whole) { return nan_f32(); }
  // Beyond this, only what is near 1 stays in range, and its logarithm times y is exact enough.
  return copysign_f32(positive_power(size, clamp(y, -1.0e30, 1.0e30)), sign);
}

fn cbrt_f32(x: f32) -> f32 {
  if (!is_finite_f32(x) || !is_true_f32(x)) { return x; }
  let p = parts(abs_f32(x));
  let n = i32(p.y);
  let third = (n + 192) / 3 - 64;
  let m = p.x * power_of_two(n - 3 * third);
  var t = bitcast<f32>(bitcast<u32>(m) / 3u + 709958130u);
  t = t - (t - m / (t * t)) * 0.333333333;
  t = t - (t - m / (t * t)) * 0.333333333;
  t = t - (t - m / (t * t)) * 0.333333333;
  return copysign_f32(t * power_of_two(third), x);
}

fn erf_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let size = abs_f32(x);
  if (size > 4.0) { return copysign_f32(1.0, x); }
  if (size > 0.927734375) {
    var p = -1.72853470e-5;
    p = p * size + 3.83197126e-4;
    p = p * size - 3.88396438e-3;
    p = p * size + 2.42546219e-2;
    p = p * size - 1.06777877e-1;
    p = p * size - 6.34846687e-1;
    p = p * size - 1.28717512e-1;
    return copysign_f32(1.0 - exp_f32(p * size - size), x);
  }
  let z = x * x;
  var p = -5.96761703e-4;
  p = p * z + 4.99119423e-3;
  p = p * z - 2.67681349e-2;
  p = p * z + 1.12819925e-1;
  p = p * z - 3.76125336e-1;
  p = p * z + 1.28379166e-1;
  return p * x + x;
}

fn erfc_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let size = abs_f32(x);
  if (size < 0.5) { return 1.0 - erf_f32(x); }
  if (size > 10.5) { return select(0.0, 2.0, is_signed_f32(x)); }
  let q = (size - 2.0) / (size + 2.0);
  var p = -2.2838924e-4;
  p = p * q - 1.2659578e-3;
  p = p * q + 1.1492211e-3;
  p = p * q + 8.659415e-3;
  p = p * q - 8.006511e-3;
  p = p * q - 5.4211304e-2;
  p = p * q + 1.6404884e-1;
  p = p * q - 1.6603082e-1;
  p = p * q - 9.276377e-2;
  p = p * q + 1.2769784;
  // e^(-x^2) by a part of x whose square is exact: rounding x^2 would cost all digits of a large x.
  let part = head(size);
  let tail = exp_f32(-part * part) * exp_f32((part - size) * (part + size)) * (p / (1.0 + 2.0 * size));
  return select(tail, 2.0 - tail, is_signed_f32(x));
}

// sin(pi x) for |x| <= 1/2.
fn sin_pi(x: f32) -> f32 {
  let far = small_cos(3.14159265 * (0.5 - abs(x)));
  return select(small_sin(3.14159265 * x), copysign_f32(far, x), abs(x) > 0.25);
}

// log gamma(1 + d) for |d| <= 1/2: exact at its zero.
fn lgamma_at_one(d: f32) -> f32 {
  var p = -1.5786809e-1;
  p = p * d + 1.799385e-1;
  p = p * d - 6.54333e-2;
  p = p * d + 6.517583e-2;
  p = p * d - 1.1455358e-1;
  p = p * d + 1.311278e-1;
  p = p * d - 1.4391874e-1;
  p = p * d + 1.6913113e-1;
  p = p * d - 2.073824e-1;
  p = p * d + 2.7059442e-1;
  p = p * d - 4.0068588e-1;
  p = p * d + 8.224669e-1;
  p = p * d - 5.772157e-1;
  return p * d;
}

// log gamma(2 + d) for |d| <= 1/2: exact at its zero.
fn lgamma_at_two(d: f32) -> f32 {
  var p = -2.6985075e-4;
  p = p * d + 5.6982145e-4;
  p = p * d - 1.1778423e-3;
  p = p * d + 2.8790568e-3;
  p = p * d - 7.387427e-3;
  p = p * d + 2.0581601e-2;
  p = p * d - 6.735222e-2;
  p = p * d + 3.2246703e-1;
  p = p * d + 4.2278433e-1;
  return p * d;
}

// log gamma for 2.5..8.
fn lgamma_middle(x: f32) -> f32 {
  if (x < 4.5) {
    let d = x - 3.5;
    var p = -2.2143208e-6;
    p = p * d + 7.5466583e-6;
    p = p * d - 2.6429325e-5;
    p = p * d + 1.2002816e-4;
    p = p * d - 5.6729506e-4;
    p = p * d + 2.929693e-3;
    p = p * d - 1.8033842e-2;
    p = p * d + 1.6517885e-1;
    p = p * d + 1.1031567;
    return p * d + 1.2009736;
  }
  let d = x - 6.25;
  var p = 1.012014e-7;
  p = p * d - 7.0444685e-7;
  p = p * d + 5.0255153e-6;
  p = p * d - 4.4448156e-5;
  p = p * d + 4.3202078e-4;
  p = p * d - 5.00364e-3;
  p = p * d + 8.673954e-2;
  p = p * d + 1.7504536;
  return p * d + 5.219604;
}

// Between -2.83 and -2.37 lie two zeros, where a difference of two logarithms has no digits left.
fn lgamma_at_zeros(x: f32) -> f32 {
  let d = x + 2.59375;
  var p = 1.0118676e5;
  p = p * d - 3.0683879e4;
  p = p * d - 3.2164536e3;
  p = p * d - 5.3759485e2;
  p = p * d + 1.348516e3;
  p = p * d - 4.72896e2;
  p = p * d + 1.9591621e2;
  p = p * d - 8.414666e1;
  p = p * d + 4.6762215e1;
  p = p * d - 1.798187e1;
  p = p * d + 1.260013e1;
  p = p * d - 4.035833;
  p = p * d + 5.563284;
  let first = opaque_f32(x + 2.4570248) - 7.4477564e-8;
  let second = opaque_f32(x + 2.7476826) + 7.531628e-8;
  return p * first * second;
}

fn positive_lgamma(x: f32) -> f32 {
  if (x < 0.5) { return lgamma_at_one(x) - log_f32(x); }
  if (x < 1.5) { return lgamma_at_one(x - 1.0); }
  if (x < 2.5) { return lgamma_at_two(x - 2.0); }
  if (x < 8.0) { return lgamma_middle(x); }
  let inverse = 1.0 / x;
  let z = inverse * inverse;
  let series = inverse * (0.0833333333 - z * (2.77777778e-3 - z * 7.93650794e-4));
  return (x - 0.5) * (log_f32(x) - 1.0) + (0.418938533 + series);
}

fn lgamma_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (is_infinite_f32(x) || !is_true_f32(x)) { return infinity_f32(); }
  if (x > 0.0) { return positive_lgamma(x); }
  if (x > -1.0e-9) { return -log_f32(-x); }
  if (x > -2.83 && x < -2.37) { return lgamma_at_zeros(x); }
  let sine = abs(sin_pi(x - round(x)));
  if (sine == 0.0) { return infinity_f32(); }
  // By the size of x rather than 1 - x, which is not always a float. Near the zeros left of -3 the
  // error is absolute, about 1e-6; digamma's is near all its zeros left of 0.
  return 1.14472989 - log_f32(-x * sine) - positive_lgamma(-x);
}

// The slope of log gamma at 1.5 + d for |d| <= 1/2, over the distance from its zero.
fn digamma_slope(d: f32) -> f32 {
  var p = 1.1117241e-2;
  p = p * d - 1.6384069e-2;
  p = p * d + 1.698129e-2;
  p = p * d - 2.5781026e-2;
  p = p * d + 4.0879145e-2;
  p = p * d - 6.2057074e-2;
  p = p * d + 9.49821e-2;
  p = p * d - 1.4839879e-1;
  p = p * d + 2.4054262e-1;
  p = p * d - 4.236275e-1;
  return p * d + 9.510559e-1;
}

fn positive_digamma(x: f32) -> f32 {
  if (x < 1.0) {
    return (opaque_f32(x - 0.46163213) - 1.24381499e-8) * digamma_slope(x - 0.5) - 1.0 / x;
  }
  if (x < 2.0) {
    return (opaque_f32(x - 1.4616321) - 1.24381499e-8) * digamma_slope(x - 1.5);
  }
  if (x < 4.0) {
    let d = x - 3.0;
    var p = -9.374794e-6;
    p = p * d + 2.451697e-5;
    p = p * d - 4.971568e-5;
    p = p * d + 1.6425522e-4;
    p = p * d - 5.4065394e-4;
    p = p * d + 1.7211058e-3;
    p = p * d - 5.6765536e-3;
    p = p * d + 1.9822692e-2;
    p = p * d - 7.705704e-2;
    p = p * d + 3.949341e-1;
    return p * d + 9.227843e-1;
  }
  let inverse = 1.0 / x;
  let z = inverse * inverse;
  let series = 0.0833333333 - z * (8.33333333e-3 - z * (3.96825397e-3 - z * 4.16666667e-3));
  return log_f32(x) - 0.5 * inverse - z * series;
}

fn digamma_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (!is_true_f32(x)) { return negative_f32(infinity_f32()); }
  if (is_infinite_f32(x)) { return select(x, nan_f32(), is_signed_f32(x)); }
  if (x > 0.0) { return positive_digamma(x); }
  let turn = x - round(x);
  if (turn == 0.0) { return nan_f32(); }
  let cotangent = sin_pi(0.5 - abs(turn)) / sin_pi(abs(turn));
  return positive_digamma(1.0 - x) - copysign_f32(3.14159265 * cotangent, turn);
}
