// Integers wrap around. WGSL defines a quotient by 0 in its own way; here it is 0, and so is the
// rest. Types of 8 and 16 bits are computed in 32 and lose their upper bits when they are stored.

const WIDTH_i32: u32 = 32u;
const WIDTH_u32: u32 = 32u;
const WIDTH_i64: u32 = 64u;
const WIDTH_u64: u32 = 64u;

fn whole_quotient_T(x: T, y: T) -> T {
  if (y == T(0)) { return T(0); }
  return x / y;
}

fn whole_rest_T(x: T, y: T) -> T {
  if (y == T(0)) { return T(0); }
  return x % y;
}

fn floor_quotient_T(x: T, y: T) -> T {
  let rest = whole_rest_T(x, y);
  let down = rest != T(0) && (rest < T(0)) != (y < T(0));
  return whole_quotient_T(x, y) - select(T(0), T(1), down);
}

fn floor_rest_T(x: T, y: T) -> T {
  let rest = whole_rest_T(x, y);
  return rest + select(T(0), y, rest != T(0) && (rest < T(0)) != (y < T(0)));
}

fn whole_sign_T(x: T) -> T {
  return select(select(T(0), ~T(0), x < T(0)), T(1), x > T(0));
}

fn whole_power_T(x: T, y: T) -> T {
  if (y < T(0)) {
    let inverse = select(T(0), select(x, T(1), (y & T(1)) == T(0)), x == ~T(0));
    return select(inverse, T(1), x == T(1));
  }
  var rest = bitcast<U>(y);
  var factor = x;
  var found = T(1);
  while (rest != U(0)) {
    found = select(found, found * factor, (rest & U(1)) != U(0));
    factor = factor * factor;
    rest = rest >> 1u;
  }
  return found;
}

fn shift_left_T(x: T, y: T) -> T {
  let count = min(bitcast<U>(y), U(WIDTH_T));
  return select(x << u32(min(count, U(WIDTH_T - 1u))), T(0), count == U(WIDTH_T));
}

fn shift_right_T(x: T, y: T) -> T {
  let count = min(bitcast<U>(y), U(WIDTH_T));
  let signs = select(T(0), ~T(0), x < T(0));
  return select(x >> u32(min(count, U(WIDTH_T - 1u))), signs, count == U(WIDTH_T));
}
