"""Operations on keys whose primary is another member of the site."""
