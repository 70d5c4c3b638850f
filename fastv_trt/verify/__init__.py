"""Is the bundle right? Its numbers against the checkpoint's, boundary by boundary. Needs torch and transformers."""

from __future__ import annotations

from fastv_trt.verify.report import Boundary, Case, Report, Tolerance, verify

__all__ = ["Boundary", "Case", "Report", "Tolerance", "verify"]
