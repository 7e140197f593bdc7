// Complex numbers of two f32.

fn complex_opaque(x: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(opaque_f32(x.x), opaque_f32(x.y));
}

fn complex_product(x: vec2<f32>, y: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
}

// The larger part of the divisor is taken out, so that no square overflows.
fn complex_quotient(x: vec2<f32>, y: vec2<f32>) -> vec2<f32> {
  if (abs(y.x) >= abs(y.y)) {
    let ratio = y.y / y.x;
    let scale = y.x + y.y * ratio;
    return vec2<f32>((x.x + x.y * ratio) / scale, (x.y - x.x * ratio) / scale);
  }
  let ratio = y.x / y.y;
  let scale = y.x * ratio + y.y;
  return vec2<f32>((x.x * ratio + x.y) / scale, (x.y * ratio - x.x) / scale);
}

fn complex_size(x: vec2<f32>) -> f32 {
  let a = abs_f32(x.x);
  let b = abs_f32(x.y);
  if (is_infinite_f32(a) || is_infinite_f32(b)) { return infinity_f32(); }
  let long = maximum_f32(a, b);
  let short = minimum_f32(a, b);
  if (!is_true_f32(long) || is_nan_f32(long)) { return long; }
  let ratio = short / long;
  return long * sqrt(1.0 + ratio * ratio);
}

fn complex_sqrt(x: vec2<f32>) -> vec2<f32> {
  if (!is_true_f32(x.x) && !is_true_f32(x.y)) { return vec2<f32>(0.0, x.y); }
  let root = sqrt(0.5 * (abs(x.x) + complex_size(x)));
  let other = 0.5 * abs_f32(x.y) / root;
  let signed = is_signed_f32(x.x);
  return vec2<f32>(select(root, other, signed), copysign_f32(select(other, root, signed), x.y));
}

fn complex_exp(x: vec2<f32>) -> vec2<f32> {
  return exp_f32(x.x) * vec2<f32>(cos_f32(x.y), sin_f32(x.y));
}

fn complex_log(x: vec2<f32>) -> vec2<f32> {
  let size = complex_size(x);
  let a = maximum_f32(abs_f32(x.x), abs_f32(x.y));
  let b = minimum_f32(abs_f32(x.x), abs_f32(x.y));
  // Near the unit circle the logarithm of the size is small, and 1 is taken out before rounding.
  let near = 0.5 * log1p_f32((a - 1.0) * (a + 1.0) + b * b);
  let away = size < 0.5 || size > 2.0 || !is_finite_f32(size);
  return vec2<f32>(select(near, log_f32(size), away), atan2_f32(x.y, x.x));
}

fn complex_sin(x: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(sin_f32(x.x) * cosh_f32(x.y), cos_f32(x.x) * sinh_f32(x.y));
}

fn complex_cos(x: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(cos_f32(x.x) * cosh_f32(x.y), -sin_f32(x.x) * sinh_f32(x.y));
}
