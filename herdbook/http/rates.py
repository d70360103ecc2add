"""`/api/v1/rates`: what went on in the last five minutes, for charts."""

from typing import Final

from herdbook.http.routes import Route

ROUTES: Final[tuple[Route, ...]] = ()
