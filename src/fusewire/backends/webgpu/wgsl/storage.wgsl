// Floats of 16 bits lie in memory by pairs and are computed in f32, so no adapter must have them.

fn half_value(bits: u32) -> f32 {
  let sign = (bits & 0x8000u) << 16u;
  let size = bits & 0x7fffu;
  if (size >= 0x7c00u) { return bitcast<f32>(sign | 0x7f800000u | ((size & 0x3ffu) << 13u)); }
  if (size < 0x0400u) { return bitcast<f32>(sign | bitcast<u32>(f32(size) * 5.9604644775390625e-8)); }
  return bitcast<f32>(sign | ((size << 13u) + 0x38000000u));
}

// To the nearest, halves to even.
fn half_bits(x: f32) -> u32 {
  let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
  let size = bitcast<u32>(x) & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; }
  if (size >= 0x38800000u) {
    return sign | ((size - 0x38000000u + 0x0fffu + ((size >> 13u) & 1u)) >> 13u);
  }
  let shift = min(126u - (size >> 23u), 31u);
  let mantissa = (size & 0x007fffffu) | 0x00800000u;
  let whole = mantissa >> shift;
  let rest = mantissa & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  let up = rest > half || (rest == half && (whole & 1u) != 0u);
  return sign | (whole + select(0u, 1u, up));
}

fn brain_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if (is_nan_f32(x)) { return (bits >> 16u) | 0x40u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn half_order(x: f32) -> i32 {
  let bits = half_bits(x);
  let size = i32(bits & 0x7fffu);
  return select(size, -size, bits >= 0x8000u);
}

fn nextafter_f16(x: f32, y: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (is_nan_f32(y)) { return y; }
  let start = half_order(x);
  let goal = half_order(y);
  let at = start + select(select(-1, 1, start < goal), 0, start == goal);
  return half_value(u32(abs(at)) | select(0u, 0x8000u, at < 0));
}

// A bf16 is an f32 whose lower half is 0.
fn nextafter_bf16(x: f32, y: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  if (is_nan_f32(y)) { return y; }
  let start = order_f32(x);
  let goal = order_f32(y);
  let at = start + select(select(-65536, 65536, start < goal), 0, start == goal);
  return bitcast<f32>(order_f32(bitcast<f32>(at)));
}
