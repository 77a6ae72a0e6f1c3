//! What an instruction set has to offer: registers of 32-bit lanes and the few operations on them from which
//! `formats` builds every type. One implementation for each instruction set; nothing here knows of types in memory.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

/// An instruction set. All functions need it; `load`, `store` and the like need as many bytes as a register has, at
/// any alignment unless they say more.
pub(super) trait Lanes {
    /// A register: 32-bit lanes of numbers or of f32s, and 16-bit and 8-bit lanes where a name says so.
    type Register: Copy;

    /// The same number in all lanes.
    unsafe fn splat(value: u32) -> Self::Register;
    unsafe fn load(from: *const u8) -> Self::Register;
    unsafe fn store(to: *mut u8, value: Self::Register);
    /// Writes past the caches, to the alignment of a register.
    unsafe fn stream(to: *mut u8, value: Self::Register);
    /// Makes what was streamed visible in the order of other stores.
    unsafe fn fence();
    /// Asks for memory that is read soon; any address will do.
    unsafe fn prefetch(from: *const u8);
    /// Asks for memory that is written soon, and for leave to write it; any address will do.
    unsafe fn prefetch_to_write(to: *const u8);

    unsafe fn add_f32(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn multiply_f32(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn divide_f32(a: Self::Register, b: Self::Register) -> Self::Register;
    /// The larger; NaN if either is; `next` of equal ones.
    unsafe fn max_f32(so_far: Self::Register, next: Self::Register) -> Self::Register;
    /// The smaller; NaN if either is; `next` of equal ones.
    unsafe fn min_f32(so_far: Self::Register, next: Self::Register) -> Self::Register;
    /// f32s in which every NaN is the one NaN.
    unsafe fn canonical(value: Self::Register) -> Self::Register;
    /// The same of four: where it is cheaper to look whether there is any NaN.
    #[inline(always)]
    unsafe fn canonical_four(values: [Self::Register; 4]) -> [Self::Register; 4] {
        // SAFETY: passed on to the caller.
        unsafe { all_canonical::<Self>(values) }
    }
    /// Half a register's bytes of f16s as f32s.
    unsafe fn load_f16(from: *const u8) -> Self::Register;
    /// A register's f16s as f32s: the lower half and the upper half.
    unsafe fn widen_f16(value: Self::Register) -> [Self::Register; 2];
    /// f32s, first those of the lower half, as f16s.
    unsafe fn narrow_f16(value: [Self::Register; 2]) -> Self::Register;

    /// The even lanes of both registers, and the odd ones.
    unsafe fn unzip(value: [Self::Register; 2]) -> [Self::Register; 2];
    /// Lanes of both in turn: the reverse.
    unsafe fn zip(value: [Self::Register; 2]) -> [Self::Register; 2];

    unsafe fn and(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn or(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn add(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn subtract(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn shift_left<const BITS: u32>(value: Self::Register) -> Self::Register;
    unsafe fn shift_right<const BITS: u32>(value: Self::Register) -> Self::Register;
    /// Lanes of `a` where those of `value` are below `limit`, lanes of `b` elsewhere. Both below 2^31.
    unsafe fn choose_below(
        value: Self::Register,
        limit: Self::Register,
        a: Self::Register,
        b: Self::Register,
    ) -> Self::Register;
    unsafe fn max_i32(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn min_i32(a: Self::Register, b: Self::Register) -> Self::Register;

    /// The lower byte of each 16-bit lane, moved to the upper.
    unsafe fn lower_to_upper_16(value: Self::Register) -> Self::Register;
    /// 16-bit lanes shifted right by one bit, with the sign kept.
    unsafe fn halve_i16(value: Self::Register) -> Self::Register;
    /// Bytes from lanes that hold nothing but a byte: `even` become the even ones, `odd` the odd ones, each with the
    /// lower half first.
    unsafe fn interleave_u8(even: [Self::Register; 2], odd: [Self::Register; 2]) -> Self::Register;
    /// Bytes of `value`, and `byte` where those of `key` are `byte`.
    unsafe fn set_where_u8(value: Self::Register, key: Self::Register, byte: u8) -> Self::Register;
    unsafe fn add_u8(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn max_u8(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn min_u8(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn add_i64(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn max_i64(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn min_i64(a: Self::Register, b: Self::Register) -> Self::Register;
}

/// Four, one by one.
#[inline(always)]
pub(super) unsafe fn all_canonical<L: Lanes + ?Sized>(
    values: [L::Register; 4],
) -> [L::Register; 4] {
    let [a, b, c, d] = values;
    // SAFETY: passed on to the caller.
    unsafe {
        [
            L::canonical(a),
            L::canonical(b),
            L::canonical(c),
            L::canonical(d),
        ]
    }
}

/// Writes the functions of an instruction set, each inlined into the code that has it.
macro_rules! lanes {
    ($(fn $name:ident$(<const $bits:ident: u32>)?($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            #[inline(always)]
            unsafe fn $name$(<const $bits: u32>)?($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller has the instruction set and, at addresses, the bytes and the alignment.
                unsafe { $body }
            }
        )*
    };
}

pub(super) use lanes;
