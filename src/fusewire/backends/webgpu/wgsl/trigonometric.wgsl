// Sines, cosines and their inverses of f32 within 4 units in the last place, for angles of any
// size. WGSL promises 2^-11 within a half turn, and nothing beyond.

// The high word of a product of two words.
fn high_product(a: u32, b: u32) -> u32 {
  let a0 = a & 0xffffu;
  let a1 = a >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let middle = a1 * b0 + ((a0 * b0) >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  return a1 * b1 + (middle >> 16u) + (other >> 16u);
}

const TWO_OVER_PI = array<u32, 7>(
  0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau
);

fn two_over_pi(word: i32) -> u32 {
  if (word < 0) { return 0u; }
  var words = TWO_OVER_PI;
  return words[word];
}

// 32 bits of 2 / pi, from a bit that need not be the first of a word.
fn two_over_pi_from(word: i32, shift: u32) -> u32 {
  let high = two_over_pi(word) << shift;
  return select(high | (two_over_pi(word + 1) >> (32u - shift)), high, shift == 0u);
}

// An angle less whole quarter turns: the rest in -pi/4..pi/4, and how many quarters, as a float.
// In integers, by the 96 bits of 2 / pi that matter for this exponent, so no angle is too large.
fn quarters(x: f32) -> vec2<f32> {
  let size = abs(x);
  if (size < 0.785) { return vec2<f32>(x, 0.0); }
  let bits = bitcast<u32>(size);
  let mantissa = (bits << 8u) | 0x80000000u;
  let exponent = i32(bits >> 23u) - 126;
  let word = exponent >> 5u;
  let shift = u32(exponent & 31);
  let first = two_over_pi_from(word - 1, shift);
  let second = two_over_pi_from(word, shift);
  let third = two_over_pi_from(word + 1, shift);
  let carried = high_product(mantissa, third);
  let low = mantissa * second + carried;
  var high = mantissa * first + high_product(mantissa, second) + select(0u, 1u, low < carried);
  // Two bits of quarters, then the fraction of one; from a half on, one more and less than 0.
  let count = ((high >> 30u) + ((high >> 29u) & 1u)) & 3u;
  let below = (high & 0x20000000u) != 0u;
  high = high << 2u | low >> 30u;
  var rest = low << 2u;
  if (below) {
    rest = ~rest + 1u;
    high = ~high + select(0u, 1u, rest == 0u);
  }
  let zeros = countLeadingZeros(high);
  let top = select((high << zeros) | (rest >> (32u - zeros)), high, zeros == 0u);
  let leading = select(top, rest, zeros == 32u) >> 8u;
  let fraction = f32(leading) * power_of_two(-24 - i32(zeros));
  let angle = copysign_f32(1.57079633 * fraction, select(1.0, -1.0, below != (x < 0.0)));
  return vec2<f32>(angle, f32(select(count, (4u - count) & 3u, x < 0.0)));
}

fn small_sin(x: f32) -> f32 {
  let z = x * x;
  return ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * x + x;
}

fn small_cos(x: f32) -> f32 {
  let z = x * x;
  let p = (2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2;
  return p * z * z + (1.0 - 0.5 * z);
}

fn sin_f32(x: f32) -> f32 {
  if (!is_finite_f32(x)) { return nan_f32(); }
  let q = quarters(x);
  let count = u32(q.y);
  let found = select(small_sin(q.x), small_cos(q.x), (count & 1u) != 0u);
  return select(found, -found, (count & 2u) != 0u);
}

fn cos_f32(x: f32) -> f32 {
  if (!is_finite_f32(x)) { return nan_f32(); }
  let q = quarters(x);
  let count = u32(q.y) + 1u;
  let found = select(small_sin(q.x), small_cos(q.x), (count & 1u) != 0u);
  return select(found, -found, (count & 2u) != 0u);
}

fn tan_f32(x: f32) -> f32 {
  if (!is_finite_f32(x)) { return nan_f32(); }
  let q = quarters(x);
  let sine = small_sin(q.x);
  let cosine = small_cos(q.x);
  let odd = (u32(q.y) & 1u) != 0u;
  return select(sine, -cosine, odd) / select(cosine, sine, odd);
}

// (asin(x) - x) / x for x^2 = z up to 1/4.
fn asin_series(z: f32) -> f32 {
  var p = 4.2163199048e-2;
  p = p * z + 2.4181311049e-2;
  p = p * z + 4.5470025998e-2;
  p = p * z + 7.4953002686e-2;
  p = p * z + 1.6666752422e-1;
  return p * z;
}

fn asin_f32(x: f32) -> f32 {
  let size = abs_f32(x);
  if (is_nan_f32(x) || order_f32(size) > order_f32(1.0)) { return nan_f32(); }
  if (size <= 0.5) { return x + x * asin_series(x * x); }
  let z = 0.5 * (1.0 - size);
  let s = sqrt(z);
  return copysign_f32(1.57079633 - 2.0 * (s + s * asin_series(z)), x);
}

fn acos_f32(x: f32) -> f32 {
  let size = abs_f32(x);
  if (is_nan_f32(x) || order_f32(size) > order_f32(1.0)) { return nan_f32(); }
  if (size <= 0.5) { return 1.57079633 - (x + x * asin_series(x * x)); }
  let z = 0.5 * (1.0 - size);
  let s = sqrt(z);
  let twice = 2.0 * (s + s * asin_series(z));
  return select(twice, 3.14159265 - twice, is_signed_f32(x));
}

// atan(x) for x in -tan(pi/8)..tan(pi/8).
fn small_atan(x: f32) -> f32 {
  let z = x * x;
  var p = 8.05374449538e-2;
  p = p * z - 1.38776856032e-1;
  p = p * z + 1.99777106478e-1;
  p = p * z - 3.33329491539e-1;
  return p * z * x + x;
}

fn positive_atan(x: f32) -> f32 {
  if (x > 2.41421356) { return 1.57079633 - small_atan(1.0 / x); }
  if (x > 0.41421356) { return 0.785398163 + small_atan((x - 1.0) / (x + 1.0)); }
  return small_atan(x);
}

fn atan_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (is_infinite_f32(x)) { return copysign_f32(1.57079633, x); }
  return copysign_f32(positive_atan(abs(x)), x);
}

fn atan2_f32(y: f32, x: f32) -> f32 {
  if (is_nan_f32(x) || is_nan_f32(y)) { return nan_f32(); }
  let up = abs_f32(y);
  let along = abs_f32(x);
  let steep = order_f32(up) > order_f32(along);
  let short = select(up, along, steep);
  let long = select(along, up, steep);
  var angle = 0.0;
  if (is_infinite_f32(long)) {
    angle = select(0.0, 0.785398163, is_infinite_f32(short));
  } else if (is_true_f32(long)) {
    angle = positive_atan(short / long);
  }
  angle = select(angle, 1.57079633 - angle, steep);
  angle = select(angle, 3.14159265 - angle, is_signed_f32(x));
  return copysign_f32(angle, y);
}
